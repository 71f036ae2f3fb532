package planner

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/bounded"
)

// A Recipe is what the configuration of a training framework implies for
// memory: settings as memplan's flags, and what memplan cannot adopt.
type Recipe struct {
	Path      string
	Framework string // one of Recipes
	Settings  []RecipeSetting
	Left      []string // settings that change memory and are not adopted, each with the reason
	Unknown   []string // keys without a row whose names suggest that they change memory, and their values
	Others    int      // number of other keys
}

// A RecipeSetting is a flag's value and the key that it comes from.
type RecipeSetting struct{ Flag, Value, Key string }

// String lists the settings, such as "batch=4 precision=bf16".
func (r *Recipe) String() string {
	return strings.Join(texts(r.Settings, func(s *RecipeSetting) string { return s.Flag + "=" + s.Value }), " ")
}

// Warning reports what was adopted and what was not.
func (r *Recipe) Warning() graph.Warning {
	text := fmt.Sprintf("%s (%s) sets %s", filepath.Base(r.Path), r.Framework, cmp.Or(r.String(), "no setting that is not given"))
	if len(r.Left) > 0 {
		text += "; not taken over: " + strings.Join(r.Left, "; ")
	}
	if n := len(r.Unknown); n > 0 {
		text += "; not known, and they may change memory: " + strings.Join(r.Unknown[:min(n, mostUnknown)], ", ")
		if n > mostUnknown {
			text += fmt.Sprintf(" and %d more", n-mostUnknown)
		}
	}
	if r.Others > 0 {
		text += fmt.Sprintf("; keys that were not looked at: %d", r.Others)
	}
	return graph.Warning{Code: "config-file", Message: text}
}

// Recipes lists the frameworks whose configurations ReadRecipe reads.
func Recipes() []string {
	return texts(recipeKinds, func(k *recipeKind) string { return k.name })
}

// mostUnknown bounds how many unknown keys a warning lists.
const mostUnknown = 12

// RecipeKeys lists the keys of a framework's configurations that memplan reads.
func RecipeKeys(framework string) []string {
	var out []string
	for _, k := range recipeKinds {
		for _, row := range k.keys {
			if k.name == framework && row.key != arguments {
				out = append(out, row.key)
			}
		}
	}
	return out
}

// A recipeReading is the state of reading a configuration.
type recipeReading struct {
	*Recipe
	values map[string]string
	err    error // the first
}

func (r *recipeReading) set(flag, value, key string) {
	for i := range r.Settings {
		if s := &r.Settings[i]; s.Flag == flag {
			if s.Value != value {
				r.fail(key, "asks for --%s %s where %s asks for %s", flag, value, s.Key, s.Value)
			}
			return
		}
	}
	r.Settings = append(r.Settings, RecipeSetting{flag, value, key})
}

func (r *recipeReading) leave(key, value, why string) {
	if value != "" {
		key += " " + value
	}
	r.Left = append(r.Left, key+": "+why)
}

func (r *recipeReading) fail(key, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %w", key, fmt.Errorf(format, args...))
	}
}

// flagOf sets a flag to a key's value; auto and null leave the flag alone.
func flagOf(name string) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, value string) {
		switch value {
		case "", "null":
		case "auto":
			r.leave(key, value, "the script decides: give --"+name)
		default:
			r.set(name, value, key)
		}
	}
}

// flagTo sets a flag to a fixed value, whatever the key's value is.
func flagTo(name, to string) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, _ string) { r.set(name, to, key) }
}

// when reads a key only if its value turns something on, as auto does.
func when(read func(*recipeReading, string, string)) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, value string) {
		switch strings.ToLower(value) {
		case "", "false", "null", "none", "no", "off", "0", "[]", "{}":
		default:
			read(r, key, value)
		}
	}
}

// unless reads a key only if its value differs from plain.
func unless(plain string, read func(*recipeReading, string, string)) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, value string) {
		if value != plain {
			read(r, key, value)
		}
	}
}

func both(a, b func(*recipeReading, string, string)) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, value string) {
		a(r, key, value)
		b(r, key, value)
	}
}

// leave records that a key is not adopted; why may contain the value as %s.
func leave(why string) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, value string) {
		switch strings.ToLower(value) {
		case "", "null", "none", "[]", "{}":
			return
		}
		if strings.Contains(why, "%s") {
			r.leave(key, "", fmt.Sprintf(why, value))
			return
		}
		r.leave(key, value, why)
	}
}

// ReadRecipe reads the configuration of a training framework: JSON, TOML if the file's name ends so,
// command-line options if they begin with dashes, and otherwise YAML. Errors name the file and the key.
func ReadRecipe(path string) (*Recipe, error) {
	data, err := files.Door{}.Read(path, files.Config)
	if err != nil {
		return nil, err
	}
	r, err := parseRecipe(path, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func parseRecipe(path string, data []byte) (*Recipe, error) {
	values, err := recipeValues(path, data)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(recipeKinds, func(k recipeKind) bool { return k.owns(values) })
	if at < 0 {
		return nil, fmt.Errorf("has no key that identifies its framework (known: %s)", strings.Join(Recipes(), ", "))
	}
	kind := &recipeKinds[at]
	values, err = kind.written(values)
	if err != nil {
		return nil, err
	}
	r := &recipeReading{Recipe: &Recipe{Path: path, Framework: kind.name}, values: values}
	keys := slices.Sorted(maps.Keys(values))
	read := map[string]bool{arguments: true}
	for _, k := range kind.keys {
		for _, key := range keys {
			if matchesKey(k.key, key) && !read[key] {
				k.read(r, key, values[key])
				read[key] = true
			}
		}
	}
	for _, key := range keys {
		switch {
		case read[key]:
		case tellsMemory(key, values[key]):
			r.Unknown = append(r.Unknown, strings.TrimSpace(key+" "+values[key]))
		default:
			r.Others++
		}
	}
	return r.Recipe, r.err
}

// owns reports whether a file has a key that only the framework's files have.
func (k *recipeKind) owns(values map[string]string) bool {
	for key := range values {
		if k.plain != nil {
			key = k.plain(key)
		}
		if slices.ContainsFunc(k.marks, func(mark string) bool { return matchesKey(mark, key) }) {
			return true
		}
	}
	return false
}

// written returns the values by their keys in the framework's table.
func (k *recipeKind) written(values map[string]string) (map[string]string, error) {
	if k.plain == nil {
		return values, nil
	}
	out := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		name := k.plain(key)
		if old, ok := out[name]; ok && old != values[key] {
			return nil, fmt.Errorf("%s is %q and %q", name, old, values[key])
		}
		out[name] = values[key]
	}
	return out, nil
}

// memoryWords match names of settings that change a step's memory.
var memoryWords = regexp.MustCompile(`(?i)offload|checkpoint|recompute|remat|quant|[248]_?bit|shard|zero|fsdp|parallel|compile|lora|peft|adapter|dtype|precision|fp8|fp16|bf16|bfloat|batch|accum|(^|_)ema($|_)|optim|cache|flash|attn|attention|pack|seq_?len|sequence|max_length|liger|kernel|freez|frozen|trainable|unfrozen|hidden_size|num_layers|vocab|bucket|buffer|memory|prefetch|persist|max_live|max_reuse|partition`)

// tellsMemory reports whether a key's name suggests that it changes memory, and
// its value does not turn it off.
func tellsMemory(key, value string) bool {
	switch strings.ToLower(value) {
	case "", "false", "null", "none", "no", "off", "0", "[]", "{}":
		return false
	}
	return memoryWords.MatchString(key[strings.LastIndexByte(key, '.')+1:])
}

// matchesKey reports whether a key matches one of a table's.
func matchesKey(pattern, key string) bool {
	prefix, family := strings.CutSuffix(pattern, "*")
	return key == pattern || family && strings.HasPrefix(key, prefix)
}

// Limits on the number of values in a configuration, and on their depth.
const (
	maxRecipe      = 10_000
	maxRecipeDepth = 8
)

var errRecipeSize = fmt.Errorf("has more than %d values, or some nested more than %d deep", maxRecipe, maxRecipeDepth)

// recipeValues reads the scalars of a configuration, by the paths of their keys.
// A list of scalars is one value, with commas.
func recipeValues(path string, data []byte) (map[string]string, error) {
	values := map[string]string{}
	trimmed := bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\ufeff")))
	switch {
	case len(trimmed) == 0:
		return nil, errors.New("the file is empty")
	case strings.EqualFold(filepath.Ext(path), ".toml"):
		if err := boundTOML(data); err != nil {
			return nil, err
		}
		tree := map[string]any{}
		if err := toml.Unmarshal(data, &tree); err != nil {
			return nil, fmt.Errorf("not TOML: %w", err)
		}
		return values, flatten(values, "", tree, 0)
	case trimmed[0] == '{':
		tree := map[string]any{}
		if err := bounded.Decode(trimmed, &tree); err != nil {
			return nil, err
		}
		return values, flatten(values, "", tree, 0)
	}
	if line, ok := bytes.CutPrefix(trimmed, []byte("--")); ok && !bytes.HasPrefix(line, []byte("-")) {
		return values, flattenArguments(values, string(trimmed))
	}
	v, err := parseYAML(data)
	if err != nil {
		return nil, fmt.Errorf("line %w", err)
	}
	return values, v.flatten(values, "", 0)
}

// maxTOMLDepth bounds the nesting of brackets, on which the parser recurses.
const maxTOMLDepth = 64

// boundTOML returns an error for brackets that are nested too deeply, including
// those in strings and comments.
func boundTOML(data []byte) error {
	depth := 0
	for _, c := range data {
		switch c {
		case '[', '{':
			if depth++; depth > maxTOMLDepth {
				return fmt.Errorf("nested more than %d deep", maxTOMLDepth)
			}
		case ']', '}':
			depth = max(depth-1, 0)
		}
	}
	return nil
}

// flatten adds the scalars of a decoded tree to values.
func flatten(values map[string]string, key string, v any, depth int) error {
	if depth > maxRecipeDepth || len(values) > maxRecipe {
		return errRecipeSize
	}
	switch x := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(x)) {
			if err := flatten(values, under(key, name), x[name], depth+1); err != nil {
				return err
			}
		}
	case []any:
		values[key] = strings.Join(texts(x, func(v *any) string { return fmt.Sprint(*v) }), ",")
	case nil:
		values[key] = ""
	case float64:
		values[key] = strconv.FormatFloat(x, 'g', -1, 64)
	default:
		values[key] = fmt.Sprint(x)
	}
	return nil
}

// flatten adds the scalars of a YAML document to values.
func (v yamlValue) flatten(values map[string]string, key string, depth int) error {
	if depth > maxRecipeDepth || len(values) > maxRecipe {
		return errRecipeSize
	}
	if pairs, err := v.pairs(); err == nil {
		for _, p := range pairs {
			if err := p.value.flatten(values, under(key, p.key), depth+1); err != nil {
				return err
			}
		}
		return nil
	} else if key == "" {
		return err
	}
	if list, err := v.list(); err == nil {
		var parts []string
		for _, item := range list {
			if s, err := item.text(); err == nil {
				parts = append(parts, s)
			}
		}
		values[key] = strings.Join(parts, ",")
		return nil
	}
	values[key], _ = v.text() // v.text() returns "" for no value
	return nil
}

// flattenArguments adds the options of a command line to values, and the
// choices of its subcommands: activation-checkpoint:full is
// activation_checkpoint.mode.
func flattenArguments(values map[string]string, text string) error {
	values[arguments] = ""
	key := ""
	words := strings.Fields(strings.ReplaceAll(text, "\\\n", " "))
	if len(words) > maxRecipe {
		return errRecipeSize
	}
	for _, w := range words {
		name, isKey := strings.CutPrefix(w, "--")
		part, mode, isMode := strings.Cut(w, ":")
		switch {
		case isKey:
			name, value, ok := strings.Cut(name, "=")
			if key = strings.ReplaceAll(name, "-", "_"); !ok {
				value = "true"
			}
			values[key] = value
		case isMode && strings.Contains(part, "-"):
			values[strings.ReplaceAll(part, "-", "_")+".mode"], key = mode, ""
		case key == "":
			return fmt.Errorf("%q is neither an option nor the value of one", w)
		case values[key] == "true":
			values[key] = w
		default:
			values[key] += "," + w
		}
	}
	return nil
}

func under(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}
