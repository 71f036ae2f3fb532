package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/planner"
)

// mostTreeFiles bounds the models and plans of a folder that diff compares.
const mostTreeFiles = 10_000

// A tree is a folder with the models and plans in it, by their paths within it with slashes.
type tree struct {
	name, dir string // as given, and where its files lie
	paths     []string
}

// treeOf returns the folder that an argument names, nil for a file. remove deletes a copy of one in git.
func treeOf(ctx context.Context, arg string) (t *tree, remove func(), err error) {
	remove = func() {}
	t = &tree{name: arg, dir: arg}
	if spec, ok := strings.CutPrefix(arg, "git:"); ok {
		if low := strings.ToLower(spec); strings.HasSuffix(low, ".onnx") || strings.HasSuffix(low, ".json") {
			return nil, remove, nil
		}
		if t.dir, remove, err = files.CommittedFolder(ctx, spec, ".onnx", ".json", ".data", ".bin"); err != nil {
			return nil, func() {}, err
		}
	} else if st, err := os.Stat(arg); err != nil || !st.IsDir() {
		return nil, remove, nil //nolint:nilerr // whoever opens the file says what is wrong with it
	}
	if err = t.list(); err != nil {
		remove()
		return nil, func() {}, fmt.Errorf("%s: %w", arg, err)
	}
	return t, remove, nil
}

// list finds the models and plans of the folder.
func (t *tree) list() error {
	return filepath.WalkDir(t.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != t.dir && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		low := strings.ToLower(d.Name())
		if !d.Type().IsRegular() || !strings.HasSuffix(low, ".onnx") && !strings.HasSuffix(low, ".json") {
			return nil
		}
		if strings.HasSuffix(low, ".json") {
			data, err := (files.Door{}).Read(path, files.Document)
			if err != nil || !planner.IsPlan(data) {
				return nil //nolint:nilerr // a document of another kind
			}
		}
		if len(t.paths) == mostTreeFiles {
			return fmt.Errorf("more than %d models and plans", mostTreeFiles)
		}
		rel, err := filepath.Rel(t.dir, path)
		t.paths = append(t.paths, filepath.ToSlash(rel))
		return err
	})
}

// at is the file of a path within the folder.
func (t *tree) at(path string) string { return filepath.Join(t.dir, filepath.FromSlash(path)) }

// shown is an error's text with the paths of a copy as the user knows them.
func (t *tree) shown(text string) string {
	if t.dir == t.name {
		return text
	}
	return strings.ReplaceAll(text, t.dir+string(filepath.Separator), t.name+"/")
}

// trees compares two folders, if the arguments name some.
func trees(ctx context.Context, s *streams, o *diffOptions, cfg planner.Config, limit *planner.Growth) (is bool, err error) {
	base, removeBase, err := treeOf(ctx, o.base)
	if err != nil {
		return true, err
	}
	defer removeBase()
	head, removeHead, err := treeOf(ctx, o.head)
	if err != nil {
		return true, err
	}
	defer removeHead()
	switch {
	case base == nil && head == nil:
		return false, nil
	case base == nil:
		return true, fmt.Errorf("%s is a folder and %s is none: give two of a kind", o.head, o.base)
	case head == nil:
		return true, fmt.Errorf("%s is a folder and %s is none: give two of a kind", o.base, o.head)
	case len(base.paths)+len(head.paths) == 0:
		return true, fmt.Errorf("%s and %s: no models (.onnx) and no plans (.json)", o.base, o.head)
	case !slices.ContainsFunc(report.TreeDiffs, func(f report.Format[*planner.TreeDiff]) bool { return f.Name == o.format }):
		return true, fmt.Errorf("--format %s is of two models or plans: of folders give text, json or markdown", o.format)
	}
	d := &planner.TreeDiff{SchemaVersion: planner.SchemaVersion, Base: o.base, Head: o.head, Files: []planner.FileDelta{}}
	if err := compareTrees(ctx, s, base, head, cfg, d); err != nil {
		return true, err
	}
	failed := d.Failed()
	if failed == 0 || o.toFile() { // a command without an answer prints no result
		if err := emit(s, &o.outputFlags, report.TreeDiffs, d); err != nil {
			return true, err
		}
	}
	if failed > 0 {
		return true, uncompared(s, o, d, failed)
	}
	if limit != nil {
		if grown := limit.ExceededIn(d); len(grown) > 0 {
			s.err.line("the allocated peak grows by more than --fail-above %s: %s", limit, strings.Join(grown, ", "))
			return true, errNo
		}
	}
	return true, nil
}

// uncompared says which files of two folders could not be compared, and why.
func uncompared(s *streams, o *diffOptions, d *planner.TreeDiff, failed int) error {
	for i := range d.Files {
		if f := &d.Files[i]; f.Status == planner.FileFailed {
			s.err.line("%s: %s", f.Path, f.Error)
		}
	}
	others := ""
	if failed < len(d.Files) && !o.toFile() {
		others = ": -o FILE gets the others"
	}
	return fmt.Errorf("%d of %s could not be compared%s", failed, report.Plural(len(d.Files), "file", "files"), others)
}

// compareTrees adds all files of two folders to d.
func compareTrees(ctx context.Context, s *streams, base, head *tree, cfg planner.Config, d *planner.TreeDiff) error {
	all := slices.Concat(base.paths, head.paths)
	slices.Sort(all)
	all = slices.Compact(all)
	show, clear := s.progress("diff")
	defer clear()
	for i, path := range all {
		if show != nil {
			show(i, len(all), path)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f := planner.FileDelta{Path: path}
		var err error
		switch inBase, inHead := slices.Contains(base.paths, path), slices.Contains(head.paths, path); {
		case inBase && inHead:
			if f.Diff, err = compared(ctx, s, base.at(path), head.at(path), cfg); err == nil {
				f.Diff.Base.Path, f.Diff.Head.Path = base.shown(base.at(path)), head.shown(head.at(path))
			}
		case inBase:
			f.Status = planner.FileRemoved
			f.Side, err = alone(ctx, s, base, path, cfg)
		default:
			f.Status = planner.FileAdded
			f.Side, err = alone(ctx, s, head, path, cfg)
		}
		if errors.Is(err, context.Canceled) {
			return err
		}
		if err != nil {
			f.Status, f.Error = planner.FileFailed, head.shown(base.shown(err.Error()))
		}
		d.Add(f)
	}
	return nil
}

// alone predicts a file that only one of the folders has.
func alone(ctx context.Context, s *streams, t *tree, path string, cfg planner.Config) (*planner.DiffSide, error) {
	m, own, _, err := opened(s, t.at(path), cfg)
	if err != nil {
		return nil, err
	}
	r, err := m.Analyze(ctx, own)
	if err != nil {
		return nil, err
	}
	side := planner.Alone(r)
	side.Path = t.shown(t.at(path))
	return side, nil
}
