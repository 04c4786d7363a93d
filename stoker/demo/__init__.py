"""The demo: tiny real models, trained by `stoker.demo.build`, and a server that has them."""
