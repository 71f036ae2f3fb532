// Package cuda runs the nodes of a program on an NVIDIA GPU: driver calls
// through gorgonia.org/cu, kernels compiled ahead of time to PTX, matrix
// products by cuBLAS and convolutions by cuDNN, both opened at run time.
//
// All but the tables is behind the build tag cuda: the driver package ends
// processes that have no GPU, and needs cgo.
package cuda

//go:generate go run ./gen
