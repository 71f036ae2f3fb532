// Package python holds the Python package memplan, and the one file of it that
// the command prints for those who do not install it.
package python

import _ "embed" // the file below

// Checkpoint is the module that applies plans to PyTorch models.
//
//go:embed memplan/_checkpoint.py
var Checkpoint string
