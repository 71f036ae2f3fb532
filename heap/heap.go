// Package heap is a binary heap.
package heap

// A Heap returns its least element first. The order of equal elements is not
// specified but the same in every run.
type Heap[T any] struct {
	Less func(a, b T) bool
	list []T
}

// Len returns the number of elements.
func (h *Heap[T]) Len() int { return len(h.list) }

// Least returns the least element without removing it. The heap must not be
// empty.
func (h *Heap[T]) Least() T { return h.list[0] }

// Push adds an element: O(log n).
func (h *Heap[T]) Push(x T) {
	h.list = append(h.list, x)
	for i := len(h.list) - 1; i > 0; {
		above := (i - 1) / 2
		if !h.Less(h.list[i], h.list[above]) {
			return
		}
		h.list[i], h.list[above] = h.list[above], h.list[i]
		i = above
	}
}

// Pop removes and returns the least element: O(log n). The heap must not be
// empty.
func (h *Heap[T]) Pop() T {
	least, n := h.list[0], len(h.list)-1
	h.list[0] = h.list[n]
	h.list = h.list[:n]
	for i := 0; 2*i+1 < n; {
		below := 2*i + 1
		if r := below + 1; r < n && h.Less(h.list[r], h.list[below]) {
			below = r
		}
		if !h.Less(h.list[below], h.list[i]) {
			break
		}
		h.list[i], h.list[below] = h.list[below], h.list[i]
		i = below
	}
	return least
}
