// Package python holds the Python package memplan: the command prints one file
// of it for users who do not install it, and runs it to validate training
// scripts.
package python

import (
	"embed"
	"io/fs"
)

// Checkpoint is the module that applies plans to PyTorch models.
//
//go:embed memplan/_checkpoint.py
var Checkpoint string

// Parallel is the module that spreads PyTorch models over the GPUs of a mesh. It imports
// from Checkpoint's.
//
//go:embed memplan/_parallel.py
var Parallel string

// Boot is the program for `python3 -c` that reads a job, with Sources, as JSON
// from standard input and answers on standard output.
//
//go:embed boot.py
var Boot string

//go:embed memplan/*.py
var sources embed.FS

// Sources returns the package's files by path.
func Sources() map[string]string {
	out := map[string]string{}
	names, err := fs.Glob(sources, "memplan/*.py")
	if err != nil {
		panic(err) // the pattern is ours
	}
	for _, name := range names {
		data, err := sources.ReadFile(name)
		if err != nil {
			panic(err) // it was listed
		}
		out[name] = string(data)
	}
	return out
}

// JAX is the text of config --to jax, with @OPS@ and @PLAN@ where it has what is the
// plan's own.
//
//go:embed jax_policies.py.in
var JAX string
