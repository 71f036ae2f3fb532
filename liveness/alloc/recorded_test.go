package alloc

import (
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// readLines returns the lines of an .xz file.
func readLines(t testing.TB, path string) []string {
	t.Helper()
	return strings.Split(strings.TrimSuffix(string(testdata.Unpacked(t, path)), "\n"), "\n")
}

// recordings returns the paths of a folder's recordings.
func recordings(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.xz"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings in %s: %v", dir, err)
	}
	return files
}

// numbers reads the fields of a line behind the first.
func numbers(t testing.TB, line string) []int64 {
	t.Helper()
	var out []int64
	for _, w := range strings.Fields(line)[1:] {
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

// origin is added to recorded addresses, which may be negative.
const origin = 1 << 50

// recorded hands out the addresses that a GPU gave: the k-th time that memory
// is taken, the k-th recorded address.
type recorded struct {
	c  *Caching
	at []int64
}

func (r *recorded) take(int64) int64  { return r.at[r.c.stats.Mallocs] }
func (r *recorded) give(int64, int64) {}

// follow makes an allocator take its segments at recorded addresses in MiB.
func follow(c *Caching, mib []int64) {
	r := &recorded{c: c}
	for _, a := range mib {
		r.at = append(r.at, a<<20+origin)
	}
	c.driver, c.span = r, 150<<30 // a little less than 9/8 of the GPU's memory
}

// addr returns the address of an allocation, from origin.
func addr(c *Caching, h Handle) int64 { return c.blocks[h.id-1].addr - origin }

// A requestLog is the first line of a recording of requests.
type requestLog struct {
	Conf     string
	Cap      int64
	Segments [][3]any
}

// taken returns the addresses of what was taken from the driver, MiB.
func (l *requestLog) taken() []int64 {
	var out []int64
	for _, s := range l.Segments {
		if s[0] == "alloc" || s[0] == "map" {
			out = append(out, int64(s[1].(float64)))
		}
	}
	return out
}

func openRequests(t testing.TB, path string) (requestLog, *Caching, []string) {
	lines := readLines(t, path)
	var log requestLog
	if err := json.Unmarshal([]byte(lines[0]), &log); err != nil {
		t.Fatal(err)
	}
	conf, err := ParseConf(log.Conf)
	if err != nil {
		t.Fatal(err)
	}
	conf.Overshoot = true
	return log, NewCaching(conf, log.Cap), lines[1:]
}

// TestRecordedRequests replays 2,000 random calls for each of 16 settings and
// compares address, allocated and reserved bytes after each with a GPU's.
func TestRecordedRequests(t *testing.T) {
	for _, path := range recordings(t, "requests") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".requests.xz"), func(t *testing.T) {
			log, c, lines := openRequests(t, path)
			follow(c, log.taken())
			live := map[int64]Handle{}
			for i, line := range lines {
				v := numbers(t, line)
				switch line[0] {
				case '+':
					h, err := c.Alloc(v[0])
					if err != nil {
						t.Fatalf("call %d %s: %v", i, line, err)
					}
					if addr(c, h) != v[1]*512 {
						t.Fatalf("call %d %s: block at %d", i, line, addr(c, h)/512)
					}
					live[int64(i)] = h
				case '-':
					c.Free(live[v[0]])
				case '!':
					if _, err := c.Alloc(v[0]); err == nil {
						t.Fatalf("call %d %s: served", i, line)
					}
				case 'e':
					c.EmptyCache()
				case '=':
					if s := c.Stats(); s.Requested != v[0] || s.Retries != v[1] || s.OOMs != v[2] {
						t.Fatalf("end %s: %+v", line, s)
					}
					continue
				}
				if c.Allocated() != v[len(v)-2]*512 || c.Reserved() != v[len(v)-1]<<20 {
					t.Fatalf("call %d %s: allocated %d, reserved %d", i, line, c.Allocated()/512, c.Reserved()>>20)
				}
				if i%10 == 0 {
					if err := c.Check(); err != nil {
						t.Fatalf("call %d %s: %v", i, line, err)
					}
				}
			}
		})
	}
}

// TestChunks gives the address model what the driver was asked for and wants
// the addresses that a GPU gave. A fresh process has two chunks already, with
// 2 MiB and, 74 MiB above, 24 MiB left, and goes on 414 MiB below the first.
func TestChunks(t *testing.T) {
	seen := 0
	for _, path := range recordings(t, "requests") {
		log, c, _ := openRequests(t, path)
		if c.conf.ExpandableSegments {
			continue
		}
		seen++
		first := log.Segments[0]
		x := int64(0) // where the piece of 2 MiB lies, MiB from the first segment
		switch n := first[2].(float64); {
		case n > 24:
			x = 478 // the first segment began a chunk of 64 MiB
		case n > 2:
			x = -74
		}
		m := freshProcess(x)
		for i, s := range log.Segments {
			at, n := int64(s[1].(float64))<<20+origin, int64(s[2].(float64))<<20
			if s[0] == "free" {
				m.give(at, n)
			} else if got := m.take(n); got != at {
				t.Errorf("%s: segment %d of %d MiB at %d MiB, the GPU's is at %d", filepath.Base(path), i, n>>20, (got-origin)>>20, (at-origin)>>20)
				break
			}
		}
	}
	if seen < 10 {
		t.Errorf("%d recordings", seen)
	}
}

func freshProcess(x int64) *chunks {
	mib := func(from, to int64) extent { return extent{origin + (x+from)<<20, origin + (x+to)<<20} }
	return &chunks{
		all: []*addressChunk{
			{mib(70, 102), []extent{mib(74, 98)}},
			{mib(-1, 31), []extent{mib(0, 2)}},
		},
		holes: []extent{{0, mib(-414, 0).from}},
	}
}

// A stepLog is the first line of a recording of steps. Heads holds for each
// step: allocated before, peak allocated, reserved before, peak reserved.
type stepLog struct {
	Run      string
	Conf     string
	Cap      int64
	Heads    [][4]int64
	Segments [][2]int64
}

// TestRecordedSteps replays whole training runs event by event and wants every
// block at the address that a GPU gave, and the four steps' statistics.
func TestRecordedSteps(t *testing.T) {
	for _, path := range recordings(t, "steps") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".steps.xz"), func(t *testing.T) {
			lines := readLines(t, path)
			var log stepLog
			if err := json.Unmarshal([]byte(lines[0]), &log); err != nil {
				t.Fatal(err)
			}
			conf, err := ParseConf(log.Conf)
			if err != nil {
				t.Fatal(err)
			}
			conf.Overshoot = true
			c := NewCaching(conf, log.Cap)
			var taken []int64
			for _, line := range lines[1:] {
				if line[0] == 'S' {
					taken = append(taken, numbers(t, line)[0])
				}
			}
			follow(c, taken)
			replayRecorded(t, c, lines[1:], log.Heads)
			if err := c.Check(); err != nil {
				t.Error(err)
			}
			if s := c.Stats(); s.Mallocs != int64(len(taken)) {
				t.Errorf("memory taken %d times, on the GPU %d times", s.Mallocs, len(taken))
			}
		})
	}
}

func replayRecorded(t *testing.T, c *Caching, lines []string, heads [][4]int64) {
	live := map[int64]Handle{}
	step := -1
	var head [4]int64
	for i, line := range lines {
		switch line[0] {
		case '#':
			switch line[2] {
			case 'Z':
				step++
				c.ResetPeaks()
				head[0], head[2] = c.Allocated(), c.Reserved()
			case 'E':
				s := c.Stats()
				head[1], head[3] = s.PeakAllocated, s.PeakReserved
				if head != heads[step] {
					t.Fatalf("step %d: %v, on the GPU %v", step, head, heads[step])
				}
			}
		case '+':
			v := numbers(t, line)
			h, err := c.Alloc(v[1])
			if err != nil {
				t.Fatalf("event %d: %v", i, err)
			}
			if addr(c, h) != v[0]*512 {
				t.Fatalf("event %d, %s: block at %d", i, line, addr(c, h)/512)
			}
			live[v[0]] = h
		case '!': // cuDNN goes on with another plan, or the run ends
			if _, err := c.Alloc(numbers(t, line)[0]); err == nil {
				t.Fatalf("event %d, %s: served", i, line)
			}
		case '-':
			a := numbers(t, line)[0]
			c.Free(live[a])
			delete(live, a)
		}
	}
	if step != 3 && step != len(heads) {
		t.Errorf("%d steps began, %d ended", step+1, len(heads))
	}
}
