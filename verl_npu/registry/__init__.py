"""The patch registry. It knows nothing of verl or Ascend: it could patch any package.

`patch` is how patches are declared, and `state` what becomes of them. From there it goes in three steps:

- `source`: how upstream's source is read, without importing it. A tree gives the definition behind a target (`tree`,
  `definition`), finds names and code in it (`lookup`), reads what upstream patches by itself (`assignments`), and
  answers a patch's questions (`probe`).
- `judge`: what the source says of each patch. A lock records a target at a pin (`lock`); a verdict is the state of a
  patch for a tree (`verdict`); what upstream patches by itself is looked up (`natives`); a newer upstream is compared
  with the nearest pin (`drift`).
- `apply`: how patches get into modules and out again. Hooks around imports (`hooks`), the places that are written
  (`slots`) and what goes there (`replacement`), the state of each patch in this process (`ledger`, `readback`), and
  the registry itself, which drives all of it (`engine`).
"""
