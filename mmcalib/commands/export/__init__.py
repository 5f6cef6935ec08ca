"""A trained model in a file that runs without Python: ONNX."""
