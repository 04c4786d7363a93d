"""Builds the tiny demonstration models that ship in `stoker/demo/models`.

Run `python -m tools.demo_models` to build all of them, or name the ones wanted. Every sentence a
model learns from is generated here, so the weights carry no third party's data.
"""
