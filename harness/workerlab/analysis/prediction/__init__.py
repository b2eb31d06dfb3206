"""Predicts response times on a server that was not measured."""

from workerlab.analysis.prediction.candidates import Predicted, predict

__all__ = ["Predicted", "predict"]
