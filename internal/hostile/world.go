//go:build linux

package main

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// nobody is whom memplan runs as where the harness is root: what a case says
// about the machine's own files then stays without effect.
const nobody = 65534

// A world is a folder with a place for one case and its surroundings:
//
//	box/case     the case's own folder, the working directory; fresh each time
//	box          its parent
//	outside      canaries, which nothing may read or write
//	home, tmp    HOME and TMPDIR
type world struct {
	root    string
	token   string // begins every canary's text
	needles [][]byte
	watch   int            // the inotify descriptor
	names   map[int]string // of watched folders
	before  map[string]string
	pending [2][]string // events that seen has fetched: read and written
	reads   int         // files that the last case read
}

// newWorld builds the surroundings in a folder that is there.
func newWorld(root string, r *rand.Rand) (*world, error) {
	w := &world{root: root, token: fmt.Sprintf("Zq%08xKanary", r.Uint32()), watch: -1}
	return w, w.rebuild()
}

func (w *world) path(name string) string { return filepath.Join(w.root, name) }

// caseDir is the case's folder.
func (w *world) caseDir() string { return w.path("box/case") }

// around are the folders that the case must leave alone.
var around = []string{"box", "outside", "outside/sub", "home", "tmp"}

// rebuild makes everything anew, after a case that changed it.
func (w *world) rebuild() error {
	w.close()
	for _, name := range []string{"box", "outside", "home", "tmp"} {
		if err := os.RemoveAll(w.path(name)); err != nil {
			return err
		}
	}
	for _, name := range append(around, "box/case") {
		if err := os.MkdirAll(w.path(name), 0o755); err != nil {
			return err
		}
	}
	w.needles = nil
	w.needle([]byte(w.token))
	for name, data := range w.canaries() {
		if err := os.WriteFile(w.path(name), data, 0o644); err != nil {
			return err
		}
		w.numbers(data)
	}
	err := cmp.Or(
		os.Symlink("secret.json", w.path("outside/link.json")),
		os.Symlink("../box/case", w.path("outside/back")),
		syscall.Mkfifo(w.path("outside/fifo"), 0o644),
	)
	if err != nil {
		return err
	}
	w.device("outside/zero", 5)
	w.device("outside/full", 7)
	if err := give(w.root); err != nil {
		return err
	}
	if err := w.open(); err != nil {
		return err
	}
	w.before, err = w.snapshot()
	return err
}

// device makes one of the memory devices, where that is allowed; /dev itself
// is never named.
func (w *world) device(name string, minor int) {
	if syscall.Mknod(w.path(name), syscall.S_IFCHR|0o666, 1<<8|minor) == nil {
		_ = os.Chmod(w.path(name), 0o666) // the umask
	}
}

// give hands files to nobody, where the harness is root.
func give(root string) error {
	if os.Getuid() != 0 {
		return nil
	}
	return filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
}

// canaries are files of the kinds that memplan reads and writes; each has the
// token, or numbers that nothing else has.
func (w *world) canaries() map[string][]byte {
	numbers := make([]byte, 0, 64)
	for i := range 8 {
		numbers = binary.LittleEndian.AppendUint64(numbers, uint64(417263950471+int64(i)*1000003))
	}
	header := "{'descr': '<i8', 'fortran_order': False, 'shape': (8,), }"
	header += strings.Repeat(" ", 117-len(header)) + "\n"
	npy := append([]byte("\x93NUMPY\x01\x00\x76\x00"), header...)
	model := encode([]*field{
		num(1, 8), str(2, w.token), msg(8, "OpsetID", num(2, 20)),
		msg(7, "Graph", str(2, w.token), msg(1, "Node", str(1, "x"), str(2, w.token), str(3, w.token), str(4, "Relu")),
			valueInfo(11, "x", 1, 2, 3), valueInfo(12, w.token, 1, 2, 3)),
	})
	tensor := encode([]*field{num(1, 8), num(2, 7), str(8, w.token), str(9, numbers)})
	text := w.token + " = 1\n"
	return map[string][]byte{
		"outside/secret.txt":      []byte(text),
		"outside/secret.json":     []byte(`{"schemaVersion": 1, "` + w.token + `": "` + w.token + `", "model": {"path": "` + w.token + `", "sha256": "` + w.token + `"}}`),
		"outside/baseline.json":   []byte(`{"schemaVersion": 1, "models": [{"path": "` + w.token + `", "reservedBytes": 417263950471}]}`),
		"outside/secret.yaml":     []byte(w.token + ": " + w.token + "\n"),
		"outside/secret.csv":      []byte("id,lower,upper,size\n" + w.token + ",0,1,417263950471\n"),
		"outside/secret.bin":      numbers,
		"outside/secret.npy":      append(npy, numbers...),
		"outside/secret.onnx":     model,
		"outside/secret.pb":       tensor,
		"outside/sub/victim.json": []byte(`{"` + w.token + `": 1}`),
		"box/secret.json":         []byte(`{"` + w.token + `": 2}`),
		"box/secret.bin":          numbers,
		"box/secret.onnx":         model,
		"home/.bashrc":            []byte("# " + text),
		"tmp/other":               []byte(text),
	}
}

// needle adds a text that no output may have, as it is, in hex and in the
// three alignments of base64.
func (w *world) needle(b []byte) {
	w.needles = append(w.needles, b, []byte(hex.EncodeToString(b)))
	for shift := range 3 {
		padded := append(make([]byte, shift), b...)
		text := base64.RawStdEncoding.EncodeToString(padded)
		w.needles = append(w.needles, []byte(text[(shift*8+5)/6:len(text)-2]))
	}
}

// numbers adds how eight bytes of a canary read as an integer or a float
// would be printed.
func (w *world) numbers(data []byte) {
	for at := 0; at+8 <= min(len(data), 64); at += 8 {
		v := binary.LittleEndian.Uint64(data[at:])
		if at == 0 && v == 0 {
			continue
		}
		if text := strconv.FormatInt(int64(v), 10); len(text) >= 12 {
			w.needles = append(w.needles, []byte(text))
		}
		f := math.Float64frombits(v)
		if text := strconv.FormatFloat(f, 'g', -1, 64); len(text) >= 12 {
			w.needles = append(w.needles, []byte(text))
		}
	}
}

// leak returns the first needle that a text has, or "".
func (w *world) leak(text []byte) string {
	for _, n := range w.needles {
		if bytes.Contains(text, n) {
			return string(n)
		}
	}
	return ""
}

// snapshot describes every file of the surroundings by what a write changes.
func (w *world) snapshot() (map[string]string, error) {
	out := map[string]string{}
	for _, dir := range []string{"box", "outside", "home", "tmp"} {
		err := filepath.WalkDir(w.path(dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case path == w.caseDir():
				return fs.SkipDir
			}
			out[path], err = describe(path)
			if path == w.path("box") { // whose times change with the case's folder
				out[path] = "folder"
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// describe gives kind, mode, owner, size, inode, times and target of a file.
// The time of change covers its content: no process can set it.
func describe(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	st := info.Sys().(*syscall.Stat_t)
	target, _ := os.Readlink(path)
	return fmt.Sprintf("%v uid=%d size=%d ino=%d mtime=%d.%09d ctime=%d.%09d %s", info.Mode(), st.Uid, st.Size, st.Ino, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec, target), nil
}

// changes compares the surroundings with what they were.
func (w *world) changes() ([]string, error) {
	now, err := w.snapshot()
	if err != nil {
		return nil, err
	}
	var out []string
	for path, was := range w.before {
		switch is, ok := now[path]; {
		case !ok:
			out = append(out, "removed "+w.short(path))
		case is != was:
			out = append(out, "changed "+w.short(path))
		}
	}
	for path := range now {
		if _, ok := w.before[path]; !ok {
			out = append(out, "made "+w.short(path))
		}
	}
	return out, nil
}

func (w *world) short(path string) string {
	return strings.TrimPrefix(path, w.root+"/")
}

const (
	readEvents  = syscall.IN_OPEN | syscall.IN_ACCESS
	writeEvents = syscall.IN_MODIFY | syscall.IN_CREATE | syscall.IN_DELETE | syscall.IN_MOVED_FROM | syscall.IN_MOVED_TO | syscall.IN_ATTRIB | syscall.IN_CLOSE_WRITE
)

// open watches the surroundings.
func (w *world) open() (err error) {
	if w.watch, err = syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC); err != nil {
		return err
	}
	w.names = map[int]string{}
	for _, dir := range around {
		id, err := syscall.InotifyAddWatch(w.watch, w.path(dir), readEvents|writeEvents)
		if err != nil {
			return err
		}
		w.names[id] = dir
	}
	return nil
}

func (w *world) close() {
	if w.watch >= 0 {
		_ = syscall.Close(w.watch)
		w.watch = -1
	}
}

// seen fetches the events of a case before the harness itself looks at the
// surroundings.
func (w *world) seen() {
	read, written := w.fetch()
	read = slices.DeleteFunc(read, func(text string) bool { // opened to be written
		return slices.Contains(written, "wrote "+strings.TrimPrefix(text, "read "))
	})
	w.pending = [2][]string{read, written}
	w.reads = len(read)
}

// events returns what happened to the surroundings until seen was called, and
// forgets it.
func (w *world) events() (read, written []string) {
	read, written = w.pending[0], w.pending[1]
	w.pending = [2][]string{}
	w.fetch()
	return read, written
}

// fetch takes the events that wait, once each: files read, and files written.
func (w *world) fetch() (read, written []string) {
	seen := map[string]bool{}
	buf := make([]byte, 1<<16)
	for {
		n, err := syscall.Read(w.watch, buf)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return read, written
		}
		for at := 0; at+syscall.SizeofInotifyEvent <= n; {
			e := (*syscall.InotifyEvent)(unsafe.Pointer(&buf[at]))
			start := at + syscall.SizeofInotifyEvent
			at = start + int(e.Len)
			name := strings.TrimRight(string(buf[start:at]), "\x00")
			text, write := w.event(e, name)
			if text == "" || seen[text] {
				continue
			}
			seen[text] = true
			if write {
				written = append(written, text)
			} else {
				read = append(read, text)
			}
		}
	}
}

// event describes one event; "" where it does not count: a folder on the way
// that is opened, the case's own folder.
func (w *world) event(e *syscall.InotifyEvent, name string) (text string, write bool) {
	if e.Mask&syscall.IN_Q_OVERFLOW != 0 {
		return "too many events", true
	}
	dir := w.names[int(e.Wd)]
	if dir == "box" && (name == "" || name == "case") {
		return "", false
	}
	folder := e.Mask&syscall.IN_ISDIR != 0
	switch {
	case e.Mask&writeEvents != 0:
		return "wrote " + filepath.Join(dir, name), true
	case e.Mask&readEvents != 0 && (!folder || dir == "outside" && name != ""):
		return "read " + filepath.Join(dir, name), false
	}
	return "", false
}
