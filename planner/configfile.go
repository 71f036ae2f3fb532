package planner

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/memplan/memplan/files"
)

// A ConfigFile is .memplan.yaml: the models that check analyzes, each with the
// limits it must keep.
type ConfigFile struct {
	Path     string // of this file
	Entries  []Entry
	Memory   int64  // limit of the memory for reading one model, bytes; 0: onnx.DefaultMemory
	Baseline string // path of the baseline, relative to the working directory like Path

	door     files.Door // for opening the files that it names
	baseline string     // as written
}

// An Entry is one model of a ConfigFile. A file may be listed several times
// with different settings.
type Entry struct {
	Path   string // as written
	File   string // resolved path: Path is relative to the configuration's folder
	Line   int    // of the entry, from 1
	Config Config
	Limits []Limit // in the order of Rules: the entry's own, else the file's

	settings []setting // as written, in the order of entryKeys
	own      []Limit
	failOn   []Limit
}

// A setting is a key of an entry's configuration and its value.
type setting struct{ key, value string }

// Settings lists the entry's settings, such as "batch=64 gpu=t4".
func (e *Entry) Settings() string {
	return strings.Join(texts(e.settings, func(s *setting) string { return s.key + "=" + s.value }), " ")
}

// A Limit is a rule with the value it must keep.
type Limit struct {
	Rule  *Rule
	Text  string  // as written: "12G", "2%"
	Value float64 // in the rule's unit
	Line  int     // of the limit, from 1

	Severity string // SeverityError or SeverityWarning
}

const (
	// ConfigFileName is looked for upward from the working directory.
	ConfigFileName = ".memplan.yaml"
	// BaselineFileName is the baseline's path unless the configuration names
	// another.
	BaselineFileName = ".memplan-baseline.json"
	// ConfigVersion is the only value of the configuration's version key.
	ConfigVersion = "1"
)

// Files lists the resolved paths of the files of a configuration: its own, its
// models and their checkpoint files.
func (f *ConfigFile) Files() []string {
	out := []string{f.Path}
	for i := range f.Entries {
		e := &f.Entries[i]
		if out = append(out, e.File); e.Config.Made.Document != "" {
			out = append(out, f.resolve(e.Config.Made.Document))
		}
	}
	return out
}

// FindConfigFile returns the path of ConfigFileName in dir or the nearest
// folder above it.
func FindConfigFile(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		p := filepath.Join(d, ConfigFileName)
		if info, err := os.Lstat(p); err == nil && !info.IsDir() {
			return p, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no %s in %s or a folder above it: write one (see memplan help config-file) or name it", ConfigFileName, dir)
		}
	}
}

// ReadConfigFile reads a configuration that the user names. The files it names
// are in its own folder, unless outside is set. Errors begin with path:line:
// and name the key; for an unknown key, also the nearest known one.
func ReadConfigFile(path string, outside bool) (*ConfigFile, error) {
	return readConfigFile(files.Door{Outside: outside}, path, path)
}

// ReadFoundConfigFile reads a configuration that FindConfigFile found: a
// symbolic link may not lead out of its folder.
func ReadFoundConfigFile(path string, outside bool) (*ConfigFile, error) {
	return readConfigFile(files.Beside(path, outside), filepath.Base(path), path)
}

func readConfigFile(d files.Door, name, path string) (*ConfigFile, error) {
	data, err := d.Read(name, files.Config)
	if err != nil {
		return nil, err
	}
	return parseConfigFile(path, data, d.Outside)
}

// ParseConfigFile parses a configuration; path is its own, for messages and to
// resolve the models.
func ParseConfigFile(path string, data []byte) (*ConfigFile, error) {
	return parseConfigFile(path, data, false)
}

func parseConfigFile(path string, data []byte, outside bool) (*ConfigFile, error) {
	root, err := parseYAML(data)
	if err != nil {
		return nil, fmt.Errorf("%s:%w", path, err)
	}
	f := &draft{ConfigFile: ConfigFile{Path: path, baseline: BaselineFileName, door: files.Beside(path, outside)}}
	if err := decodeMap(root, "the configuration", fileKeys, f); err != nil {
		return nil, fmt.Errorf("%s:%w", path, err)
	}
	if err := f.finish(); err != nil {
		return nil, fmt.Errorf("%s:%w", path, err)
	}
	return &f.ConfigFile, nil
}

// A draft is a configuration while it is read.
type draft struct {
	ConfigFile
	limits []Limit // of the whole file
	failOn []Limit // of the whole file
}

// fileKeys are the keys of the configuration.
var fileKeys = []yamlKey[draft]{
	{"version", func(f *draft, v yamlValue) error {
		s, err := v.text()
		if err == nil && s != ConfigVersion {
			err = v.errorf("version %s: this memplan reads version %s", s, ConfigVersion)
		}
		return err
	}},
	{"models", func(f *draft, v yamlValue) error {
		list, err := v.list()
		for _, item := range list {
			entries, err := decodeEntry(item, fmt.Sprintf("models[%d]", len(f.Entries)))
			if err != nil {
				return err
			}
			if f.Entries = append(f.Entries, entries...); len(f.Entries) > mostCases {
				return item.errorf("more than %d cases", mostCases)
			}
		}
		return err
	}},
	{"rules", func(f *draft, v yamlValue) (err error) {
		f.limits, err = decodeLimits(v)
		return err
	}},
	{"fail-on", func(f *draft, v yamlValue) (err error) {
		f.failOn, err = decodeFailOn(v)
		return err
	}},
	{"baseline", func(f *draft, v yamlValue) (err error) {
		f.baseline, err = v.text()
		return err
	}},
}

// entryKeys are the keys of a model; those after path and before rules are
// its settings.
var entryKeys = slices.Concat([]yamlKey[Entry]{
	{"path", func(e *Entry, v yamlValue) (err error) {
		e.Path, err = v.text()
		return err
	}},
}, settingKeys(), []yamlKey[Entry]{
	{matrixKey, func(e *Entry, v yamlValue) error { return nil }}, // decodeEntry reads it
	{"rules", func(e *Entry, v yamlValue) (err error) {
		e.own, err = decodeLimits(v)
		return err
	}},
	{"fail-on", func(e *Entry, v yamlValue) (err error) {
		e.failOn, err = decodeFailOn(v)
		return err
	}},
})

// mostCases bounds the number of entries that matrices expand to.
const mostCases = 100_000

// matrixKey is the key of settings that have a list of values each.
const matrixKey = "matrix"

// decodeEntry reads a model: one entry, or one for each combination of the values
// in its matrix, the last setting changing fastest.
func decodeEntry(v yamlValue, what string) ([]Entry, error) {
	one := Entry{Line: v.line}
	if err := decodeMap(v, what, entryKeys, &one); err != nil {
		return nil, err
	}
	axes, err := matrix(v, &one)
	if err != nil || len(axes) == 0 {
		return []Entry{one}, err
	}
	total := 1
	for _, a := range axes {
		if total *= len(a.values); total > mostCases {
			return nil, v.errorf("%s: more than %d cases", matrixKey, mostCases)
		}
	}
	out := make([]Entry, total)
	for i := range out {
		e := &out[i]
		e.Line = v.line
		if err := decodeMap(v, what, entryKeys, e); err != nil { // again for each: settings hold maps
			return nil, err
		}
		rest := i
		for j := len(axes) - 1; j >= 0; j-- {
			a := &axes[j]
			if err := e.read(a.setting, a.values[rest%len(a.values)]); err != nil {
				return nil, err
			}
			rest /= len(a.values)
		}
		slices.Reverse(e.settings[len(e.settings)-len(axes):])
	}
	return out, nil
}

// An axis is a setting with its values in a matrix.
type axis struct {
	setting *Setting
	values  []yamlValue
}

// matrix reads the axes of an entry's matrix, in the order of Settings.
func matrix(v yamlValue, e *Entry) (axes []axis, err error) {
	pairs, err := v.pairs()
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(pairs, func(p yamlPair) bool { return p.key == matrixKey })
	if at < 0 {
		return nil, nil
	}
	var keys []yamlKey[[]axis]
	for i := range Settings {
		if s := &Settings[i]; s.Key != "" {
			keys = append(keys, yamlKey[[]axis]{s.Key, func(axes *[]axis, v yamlValue) error {
				list, err := v.list()
				if err != nil {
					return err
				}
				if slices.ContainsFunc(e.settings, func(x setting) bool { return x.key == s.Key }) || len(list) == 0 {
					return v.errorf("%s: %s: want a list of values, and none beside the matrix", matrixKey, s.Key)
				}
				if _, ok := s.At(&e.Config).(*map[string]int64); ok {
					return v.errorf("%s: %s: not a setting with one value: write an entry for each", matrixKey, s.Key)
				}
				*axes = append(*axes, axis{s, list})
				return nil
			}})
		}
	}
	return axes, decodeMap(pairs[at].value, matrixKey, keys, &axes)
}

func settingKeys() (keys []yamlKey[Entry]) {
	for i := range Settings {
		if s := &Settings[i]; s.Key != "" {
			keys = append(keys, yamlKey[Entry]{s.Key, func(e *Entry, v yamlValue) error { return e.read(s, v) }})
		}
	}
	return keys
}

// Selections are the values of checkpoint that are not files.
var Selections = []struct{ Name, Doc string }{
	{"none", "nothing is recomputed"},
	{"auto", "least recomputation that fits the budget, of what PyTorch can do: runs of modules, in which the results of some operators are kept"},
	{"segments", "the same of whole runs of modules, for PyTorch before 2.4"},
	{"all", "every module that saves anything"},
	{"sqrt", "runs of about the square root of the number of modules"},
	{"schedule", "least recomputation of operations at any time, for memplan's executor"},
	{"ops", "the same, each at most once and in the backward pass"},
}

// Checkpoints lists the names of Selections.
var Checkpoints = texts(Selections, func(s *struct{ Name, Doc string }) string { return s.Name })

// read reads one setting and remembers its text. A card must be in the table:
// calibrated devices are for command lines.
func (e *Entry) read(s *Setting, v yamlValue) error {
	if _, ok := s.At(&e.Config).(*map[string]int64); ok {
		return e.readAll(s, v)
	}
	text, err := v.text()
	if err != nil {
		return err
	}
	if err = s.check(text); err == nil {
		err = s.Read(&e.Config, text)
	}
	if err != nil {
		return v.errorf("%w", err)
	}
	e.settings = append(e.settings, setting{s.Key, text})
	return nil
}

func known(kind, s string, names ...string) error {
	if slices.Contains(names, s) {
		return nil
	}
	return fmt.Errorf("unknown %s %q (known: %s)", kind, s, strings.Join(names, ", "))
}

// readAll reads a setting that is a mapping to whole numbers; e.settings lists
// it sorted by name.
func (e *Entry) readAll(s *Setting, v yamlValue) error {
	pairs, err := v.pairs()
	if err != nil {
		return err
	}
	var all []setting
	for _, p := range pairs {
		text, err := p.value.text()
		if err != nil {
			return err
		}
		if s.Read(&e.Config, p.key+"="+text) != nil {
			return p.value.errorf("%s: %s: want a non-negative integer, not %q", s.Key, p.key, text)
		}
		all = append(all, setting{p.key, text})
	}
	slices.SortFunc(all, func(a, b setting) int { return strings.Compare(a.key, b.key) })
	e.settings = append(e.settings, all...)
	return nil
}

// decodeLimits reads a map of rules into the order of Rules. A limit is a value,
// or a map with a limit and a severity.
func decodeLimits(v yamlValue) ([]Limit, error) {
	var out []Limit
	var keys []yamlKey[[]Limit]
	for i := range Rules {
		r := &Rules[i]
		if r.Implied || r.FailOn {
			continue
		}
		keys = append(keys, yamlKey[[]Limit]{r.Name, func(out *[]Limit, v yamlValue) error {
			l, err := decodeLimit(r, v)
			*out = append(*out, l)
			return err
		}})
	}
	return out, decodeMap(v, "rules", keys, &out)
}

// limitKeys are the keys of a limit that is written as a map.
var limitKeys = []yamlKey[Limit]{
	{"limit", func(l *Limit, v yamlValue) (err error) {
		if l.Text, err = v.text(); err != nil {
			return err
		}
		if l.Value, err = l.Rule.parse(l.Text); err != nil {
			return v.errorf("%s: %w", l.Rule.Name, err)
		}
		return nil
	}},
	{"severity", func(l *Limit, v yamlValue) (err error) {
		if l.Severity, err = v.text(); err != nil {
			return err
		}
		if err := known("severity", l.Severity, SeverityError, SeverityWarning); err != nil {
			return v.errorf("%w", err)
		}
		return nil
	}},
}

func decodeLimit(r *Rule, v yamlValue) (Limit, error) {
	l := Limit{Rule: r, Line: v.line, Severity: SeverityError}
	if _, err := v.pairs(); err != nil { // a single value
		return l, limitKeys[0].read(&l, v)
	}
	if err := decodeMap(v, r.Name, limitKeys, &l); err != nil {
		return l, err
	}
	if l.Text == "" {
		return l, v.errorf("%s: no limit", r.Name)
	}
	return l, nil
}

// decodeFailOn reads the list of rules that fail a model.
func decodeFailOn(v yamlValue) ([]Limit, error) {
	list, err := v.list()
	if err != nil {
		return nil, err
	}
	names := failOnNames()
	var out []Limit
	for _, item := range list {
		s, err := item.text()
		if err != nil {
			return nil, err
		}
		if err := known("fail-on", s, names...); err != nil {
			return nil, item.errorf("%w", err)
		}
		i := slices.IndexFunc(Rules, func(r Rule) bool { return r.Name == s })
		out = append(out, Limit{Rule: &Rules[i], Text: "none", Line: item.line, Severity: SeverityError})
	}
	return out, nil
}

// finish resolves paths and merges the file's limits into the entries.
func (f *draft) finish() error {
	if len(f.Entries) == 0 {
		return fmt.Errorf("1: no models: list at least one under models, as - path: model.onnx")
	}
	f.Baseline = f.resolve(f.baseline)
	if err := f.expand(); err != nil {
		return err
	}
	first := map[string]int{}
	for i := range f.Entries {
		e := &f.Entries[i]
		if e.Path == "" {
			return fmt.Errorf("%d: models[%d]: no path", e.Line, i)
		}
		e.File, e.Config.Files = f.resolve(e.Path), &f.door
		if err := e.Config.ReadCheckpoint(); err != nil {
			return fmt.Errorf("%d: models[%d]: checkpoint: %w", e.Line, i, err)
		}
		key := e.Path + "\x00" + e.Settings()
		if j, ok := first[key]; ok {
			return fmt.Errorf("%d: models[%d] repeats models[%d], %s with the same settings", e.Line, i, j, e.Path)
		}
		first[key] = i
		e.Limits = merge(slices.Concat(e.own, e.failOn), slices.Concat(f.limits, f.failOn))
	}
	return nil
}

// expand replaces an entry whose path is a pattern by one for each matching
// file, sorted by name, with the same settings and rules. A pattern without a
// match is an error: a gate that checks nothing protects nothing.
func (f *draft) expand() error {
	const most = 1000 // models of one pattern
	var out []Entry
	for i := range f.Entries {
		e := f.Entries[i]
		if !strings.ContainsAny(e.Path, "*?[") {
			out = append(out, e)
			continue
		}
		names, err := f.door.Glob(e.Path)
		switch {
		case err != nil:
			return fmt.Errorf("%d: models[%d]: %w", e.Line, i, err)
		case len(names) == 0 && f.exists(e.Path): // a name with brackets
			names = []string{e.Path}
		case len(names) == 0:
			return fmt.Errorf("%d: models[%d]: no file matches %s", e.Line, i, e.Path)
		case len(names) > most:
			return fmt.Errorf("%d: models[%d]: %s matches %d files, more than %d", e.Line, i, e.Path, len(names), most)
		}
		for _, name := range names {
			e.Path = name
			out = append(out, e)
		}
	}
	f.Entries = out
	return nil
}

// exists reports whether a file of that name can be opened.
func (f *draft) exists(name string) bool {
	file, err := f.door.Open(name, files.Model)
	if err == nil {
		err = file.Close()
	}
	return err == nil
}

// resolve resolves a path relative to the configuration.
func (f *ConfigFile) resolve(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(filepath.Dir(f.Path), filepath.FromSlash(p))
}

// merge returns the limits of own, and those of all whose rules own does not
// limit, in the order of Rules.
func merge(own, all []Limit) []Limit {
	var out []Limit
	for i := range Rules {
		for _, list := range [][]Limit{own, all} {
			j := slices.IndexFunc(list, func(l Limit) bool { return l.Rule == &Rules[i] })
			if j >= 0 {
				out = append(out, list[j])
				break
			}
		}
	}
	return out
}
