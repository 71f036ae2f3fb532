// Package heap gives back elements in order while others come: a binary heap.
package heap

// A Heap gives back its least element first. Elements of which neither is less
// come in any order, the same from run to run.
type Heap[T any] struct {
	Less func(a, b T) bool
	list []T
}

// Len is how many elements there are.
func (h *Heap[T]) Len() int { return len(h.list) }

// Least returns the least element, of which there must be one, and leaves it.
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

// Pop takes the least element, of which there must be one: O(log n).
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
