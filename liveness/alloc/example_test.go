package alloc_test

import (
	"errors"
	"fmt"

	"github.com/memplan/memplan/liveness/alloc"
)

// A request of 13.5 MiB takes a segment of 14 MiB, and all of it counts as
// allocated: the rest is too small to split off. Once it is free, a request of
// 12 MiB takes a part of it.
func ExampleCaching() {
	a := alloc.NewCaching(alloc.Conf{}, 16<<20)
	h, _ := a.Alloc(13.5 * (1 << 20))
	fmt.Println(a.Allocated()>>20, a.Reserved()>>20)

	_, err := a.Alloc(1 << 20)
	fmt.Println(err == nil, a.Reserved()>>20)

	_, err = a.Alloc(2 << 20)
	fmt.Println(errors.Is(err, alloc.ErrOutOfMemory))

	a.Free(h)
	_, err = a.Alloc(12 << 20)
	fmt.Println(err == nil, a.Allocated()>>20, a.Reserved()>>20)
	// Output:
	// 14 14
	// true 16
	// true
	// true 13 16
}
