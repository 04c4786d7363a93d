"""Builds the tiny demonstration models that ship in `stoker/demo/models`.

Run `python -m tools.demo_models` to build all models, or pass the names of some. All training
sentences are generated here, so the weights contain no third party's data.
"""
