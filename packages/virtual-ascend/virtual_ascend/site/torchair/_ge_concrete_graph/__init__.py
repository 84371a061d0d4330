"""The private part of torchair that MindSpeed imports."""
