// Package cuda runs the nodes of a program on an NVIDIA GPU: driver calls
// through gorgonia.org/cu, kernels compiled ahead of time to PTX, matrix
// products by cuBLAS and convolutions by cuDNN, both opened at run time.
//
// Convolutions have several Paths. To measure or to test one alone, the variable
// MEMPLAN_CONV names those that are on: graph, legacy, depthwise,
// depthwise-filter, with commas between them, or own for none but memplan's own
// kernels. (MEMPLAN_CUDNN is something else: the file of the library.)
//
// All but the tables is behind the build tag cuda: the driver package ends
// processes that have no GPU, and needs cgo.
package cuda

//go:generate go run ./gen
