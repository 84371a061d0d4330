"""The patch registry. It knows nothing of verl or Ascend: it could patch any package."""
