// Package python holds the Python package memplan, and the files that the command
// prints for those who do not install it.
package python

import _ "embed" // the files below

// Checkpoint is the module that applies plans to PyTorch models.
//
//go:embed memplan/_checkpoint.py
var Checkpoint string

// JAX is the text of config --to jax, with @OPS@ and @PLAN@ where it has what is the
// plan's own.
//
//go:embed jax_policies.py.in
var JAX string
