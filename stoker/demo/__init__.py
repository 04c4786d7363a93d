"""Demo: tiny real models, trained by `tools.demo_models`, and a server that has them deployed."""
