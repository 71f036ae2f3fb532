package onnx

// chunkSize is how many items a stack allocates at once.
const chunkSize = 512

// A stack collects lists of unknown length. Lists nest: the items pushed since
// a mark are taken before those below it. A taken list has its exact length and
// shares large allocations with others.
type stack[T any] struct {
	items []T
	chunk []T
}

// mark begins a list.
func (s *stack[T]) mark() int { return len(s.items) }

func (s *stack[T]) push(x T) { s.items = append(s.items, x) }

// take ends the list begun at mark; nil when it is empty.
func (s *stack[T]) take(mark int) []T {
	n := len(s.items) - mark
	if n == 0 {
		return nil
	}
	if cap(s.chunk)-len(s.chunk) < n {
		s.chunk = make([]T, 0, max(n, chunkSize))
	}
	start := len(s.chunk)
	s.chunk = append(s.chunk, s.items[mark:]...)
	clear(s.items[mark:])
	s.items = s.items[:mark]
	return s.chunk[start:len(s.chunk):len(s.chunk)]
}
