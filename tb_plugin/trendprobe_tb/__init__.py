"""TensorBoard plugin that shows TrendProbe's and msProbe's trend databases.

Importing it costs nothing: what it needs (numpy, and TensorBoard's own modules) is imported by trendprobe_tb.plugin.
"""
