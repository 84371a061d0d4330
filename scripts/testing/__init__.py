"""What the tests of several distributions of this project use. Conftests put scripts/ on the path."""
