"""TensorBoard plugin that shows TrendProbe's and msProbe's trend databases."""
