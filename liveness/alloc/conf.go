package alloc

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// PyTorch's constants, in bytes (c10/core/AllocatorConfig.h of 2.11).
const (
	minBlock      = 512
	smallSize     = 1 << 20  // largest request of the small pool
	smallBuffer   = 2 << 20  // segment of the small pool
	largeBuffer   = 20 << 20 // default segment of the large pool for requests under minLargeAlloc
	minLargeAlloc = 10 << 20
	roundLarge    = 2 << 20
	maxRequest    = 1 << 45 // no card holds more; sums of requests do not overflow
	maxReserved   = 1 << 60 // the cap where there is none
)

// divisions is the number of intervals of roundup_power2_divisions: one for
// each power of two from 1 MiB on; the last is open.
const divisions = 16

// A Conf holds the options of PYTORCH_ALLOC_CONF that change what is
// allocated or reserved. The zero Conf is PyTorch's default.
type Conf struct {
	// ExpandableSegments grows one segment per stream and pool in steps of
	// 2 MiB (small) or 20 MiB (large) instead of taking many segments.
	ExpandableSegments bool
	// Overshoot lets an expandable segment exceed the cap by less than one 20
	// MiB step, as PyTorch does under set_per_process_memory_fraction, which
	// compares the cap with the size of an ordinary segment. Without it the cap
	// is as hard as the card's own memory. It is not an option of
	// PYTORCH_ALLOC_CONF.
	Overshoot bool
	// LargeSegmentSize is the bytes of the segments taken for requests from 1
	// to 10 MiB, and of the steps of the large pool's expandable segment; 0 is
	// 20 MiB.
	LargeSegmentSize int64
	// MaxSplitSize is the size in bytes from which blocks are not split and
	// serve only requests of that size; 0 is no limit.
	MaxSplitSize int64
	// MaxNonSplitRounding is the number of bytes by which a block of
	// MaxSplitSize or more may exceed the request; 0 is LargeSegmentSize.
	MaxNonSplitRounding int64
	// RoundupPower2Divisions holds, for sizes from 2^i to 2^(i+1) MiB, the
	// number of steps into which the interval is divided; sizes are rounded up
	// to a step. 0 and 1 round to 512 bytes. The first entry also holds for
	// smaller sizes, the last for larger ones.
	RoundupPower2Divisions [divisions]int64
	// GarbageCollectionThreshold is the fraction of the cap above which
	// unused segments are released before a new one is taken; 0 is off. It
	// has no effect without a cap.
	GarbageCollectionThreshold float64
}

// round returns the bytes of the block for a request of size bytes.
func (c *Conf) round(size int64) int64 {
	if size <= minBlock {
		return minBlock
	}
	i := min(max(bits.Len64(uint64(size))-1-20, 0), divisions-1)
	if d := c.RoundupPower2Divisions[i]; d > 1 && size > minBlock*d {
		return roundPower2(size, d)
	}
	return ceil(size, minBlock)
}

// roundPower2 rounds size up to one of the d equal steps, a power of two,
// between the powers of two around it.
func roundPower2(size, d int64) int64 {
	floor := int64(1) << (bits.Len64(uint64(size)) - 1)
	if floor == size {
		return size
	}
	step := floor / d
	if step == 0 {
		return 2 * floor
	}
	return ceil(size, step)
}

func ceil(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// checkRequest refuses sizes beyond any allocator's.
func checkRequest(size int64) error {
	if size < 0 {
		return fmt.Errorf("request of %d bytes", size)
	}
	if size > maxRequest {
		return &OutOfMemoryError{Request: size, Segment: size}
	}
	return nil
}

// large returns the bytes of a segment for requests from 1 to 10 MiB.
func (c *Conf) large() int64 {
	if c.LargeSegmentSize > 0 {
		return c.LargeSegmentSize
	}
	return largeBuffer
}

// segmentSize returns the bytes of the segment taken for a rounded size.
func (c *Conf) segmentSize(size int64) int64 {
	switch {
	case size <= smallSize:
		return smallBuffer
	case size < minLargeAlloc:
		return c.large()
	}
	return ceil(size, roundLarge)
}

// An option is an entry of PYTORCH_ALLOC_CONF.
type option struct {
	name string
	// set reads the tokens between the colon and the next comma.
	set func(c *Conf, value []string) error
}

// options is the table of the known options; those whose names begin with
// pinned_ concern host memory and are ignored.
var options = []option{
	{"expandable_segments", setExpandable},
	{"large_segment_size_mb", setLargeSegment},
	{"max_split_size_mb", setMaxSplit},
	{"max_non_split_rounding_mb", setNonSplitRounding},
	{"garbage_collection_threshold", setGarbage},
	{"roundup_power2_divisions", setDivisions},
	{"per_process_memory_fraction", refuseFraction},
	{"backend", setBackend},
	{"pinned_", ignore},
	{"release_lock_on_cudamalloc", ignore},
	{"release_lock_on_hipmalloc", ignore},
	{"throw_on_cudamalloc_oom", ignore},
	{"graph_capture_record_stream_reuse", ignore},
}

// optionNamed returns the option of that name, or nil.
func optionNamed(name string) *option {
	for i := range options {
		if o := &options[i]; o.name == name || strings.HasSuffix(o.name, "_") && strings.HasPrefix(name, o.name) {
			return o
		}
	}
	return nil
}

// ParseConf parses the value of PYTORCH_ALLOC_CONF (or
// PYTORCH_CUDA_ALLOC_CONF): options as name:value, separated by commas; blanks
// are ignored. Unknown options and values that PyTorch refuses are errors, and
// so is a backend other than native.
func ParseConf(s string) (Conf, error) {
	var c Conf
	tok := tokens(s)
	for i := 0; i < len(tok); i++ {
		o := optionNamed(tok[i])
		if o == nil {
			return Conf{}, fmt.Errorf("allocator option %q is unknown", tok[i])
		}
		name := tok[i]
		if i++; i == len(tok) || tok[i] != ":" {
			return Conf{}, fmt.Errorf("allocator option %s: no colon and value behind it", name)
		}
		value := untilComma(tok[i+1:])
		if err := o.set(&c, value); err != nil {
			return Conf{}, fmt.Errorf("allocator option %s: %w", name, err)
		}
		i += len(value) + 1
	}
	return c, c.check()
}

// check compares options with each other.
func (c *Conf) check() error {
	least := c.large()
	switch {
	case c.MaxSplitSize != 0 && c.MaxSplitSize < least:
		return fmt.Errorf("allocator option max_split_size_mb: %d MiB is less than a large segment, %d MiB", c.MaxSplitSize>>20, least>>20)
	case c.MaxNonSplitRounding != 0 && c.MaxNonSplitRounding < least:
		return fmt.Errorf("allocator option max_non_split_rounding_mb: %d MiB is less than a large segment, %d MiB", c.MaxNonSplitRounding>>20, least>>20)
	}
	return nil
}

// tokens splits at , : [ and ], which are tokens themselves, and drops blanks.
func tokens(s string) []string {
	var out []string
	start := true
	for _, r := range s {
		switch {
		case strings.ContainsRune(",:[]", r):
			out, start = append(out, string(r)), true
		case strings.ContainsRune(" \t\n\v\f\r", r):
		case start:
			out, start = append(out, string(r)), false
		default:
			out[len(out)-1] += string(r)
		}
	}
	return out
}

// untilComma returns the tokens before the first comma outside brackets.
func untilComma(tok []string) []string {
	depth := 0
	for i, t := range tok {
		switch {
		case t == "[":
			depth++
		case t == "]":
			depth--
		case t == "," && depth == 0:
			return tok[:i]
		}
	}
	return tok
}

// one returns the only token of a value.
func one(value []string) (string, error) {
	if len(value) != 1 || strings.Contains(",:[]", value[0]) {
		return "", fmt.Errorf("%q is not a single value", strings.Join(value, ""))
	}
	return value[0], nil
}

func setExpandable(c *Conf, value []string) error {
	s, err := one(value)
	if err != nil {
		return err
	}
	if s != "True" && s != "False" {
		return fmt.Errorf("%q is neither True nor False", s)
	}
	c.ExpandableSegments = s == "True"
	return nil
}

func setLargeSegment(c *Conf, value []string) error {
	n, err := megabytes(value)
	if err == nil && n <= minLargeAlloc {
		err = fmt.Errorf("%d MiB is not more than %d", n>>20, minLargeAlloc>>20)
	}
	c.LargeSegmentSize = n
	return err
}

func setMaxSplit(c *Conf, value []string) (err error) {
	c.MaxSplitSize, err = megabytes(value)
	return err
}

func setNonSplitRounding(c *Conf, value []string) (err error) {
	c.MaxNonSplitRounding, err = megabytes(value)
	return err
}

// megabytes parses a number of MiB, at least 1, and returns bytes.
func megabytes(value []string) (int64, error) {
	s, err := one(value)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is not a number of MiB", s)
	}
	return min(n, maxRequest>>20) << 20, nil
}

func setGarbage(c *Conf, value []string) error {
	s, err := one(value)
	if err != nil {
		return err
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f > 0 && f < 1) {
		return fmt.Errorf("%q is not a number between 0 and 1", s)
	}
	c.GarbageCollectionThreshold = f
	return nil
}

func setBackend(_ *Conf, value []string) error {
	s, err := one(value)
	if err != nil {
		return err
	}
	if s != "native" {
		return fmt.Errorf("backend %q is not modelled, only native", s)
	}
	return nil
}

func refuseFraction(*Conf, []string) error {
	return fmt.Errorf("the limit is given as a cap in bytes")
}

func ignore(_ *Conf, value []string) error {
	_, err := one(value)
	return err
}

// setDivisions parses one number for all sizes, or a list of size in MiB and
// number: [256:1,512:2,1024:4,>:8]. Sizes below the first have its number; >
// sets those above the last.
func setDivisions(c *Conf, value []string) error {
	if len(value) > 0 && value[0] == "[" {
		return setDivisionList(c, value)
	}
	s, err := one(value)
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || !isPower2(n) {
		return fmt.Errorf("%q is not a power of two", s)
	}
	fill(c.RoundupPower2Divisions[:], n)
	return nil
}

func setDivisionList(c *Conf, value []string) error {
	if len(value) < 2 || value[len(value)-1] != "]" {
		return fmt.Errorf("the list has no closing bracket")
	}
	list, d := value[1:len(value)-1], &c.RoundupPower2Divisions
	last := -1
	for len(list) > 0 {
		if len(list) < 3 || list[1] != ":" || len(list) > 3 && list[3] != "," {
			return fmt.Errorf("%q is not a list of size:divisions", strings.Join(value, ""))
		}
		n, err := strconv.ParseInt(list[2], 10, 64)
		if err != nil || n != 0 && !isPower2(n) {
			return fmt.Errorf("%q is neither 0 nor a power of two", list[2])
		}
		if list[0] == ">" {
			fill(d[max(last, 0)+1:], n)
		} else {
			i, err := interval(list[0])
			if err != nil {
				return err
			}
			if last < 0 {
				fill(d[:i], n)
			}
			d[i], last = n, i
		}
		list = list[min(4, len(list)):]
	}
	return nil
}

// interval returns the index of the interval of a size in MiB.
func interval(s string) (int, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || !isPower2(n) {
		return 0, fmt.Errorf("size %q is not a power of two of MiB", s)
	}
	return min(bits.TrailingZeros64(uint64(n)), divisions-1), nil
}

func isPower2(n int64) bool { return n > 0 && n&(n-1) == 0 }

func fill(d []int64, n int64) {
	for i := range d {
		d[i] = n
	}
}
