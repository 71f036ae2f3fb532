package validate

import (
	"runtime"
	"sync"
)

// spreadLeast is the least number of elements for another processor.
const spreadLeast = 1 << 15

// spread calls f concurrently for the parts of 0 to n, on all processors: each
// element is in one part. f must not write what another part reads.
func spread(n int, f func(lo, hi int)) {
	parts := min(runtime.GOMAXPROCS(0), n/spreadLeast)
	if parts < 2 {
		f(0, n)
		return
	}
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() { f(n*i/parts, n*(i+1)/parts) })
	}
	wg.Wait()
}
