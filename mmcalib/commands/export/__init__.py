"""The command ``export``: a trained model as an ONNX file."""
