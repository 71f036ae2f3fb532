// Package dnngraph runs convolutions through cuDNN's graph interface, as PyTorch
// does (aten/src/ATen/native/cudnn/Conv_v8.cpp): a graph of one operation, the
// engines that cuDNN's instant heuristic proposes for it, then those of its
// fallback list, and the first that may and can run it.
//
// All of it is behind the build tag cuda, since it needs cgo. It
// links with nothing: cuDNN is opened at run time, so that tests can put a
// library of their own in its place, on machines without a GPU.
package dnngraph
