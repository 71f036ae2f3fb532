package files

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/bmatcuk/doublestar/v4"
)

// Glob lists the regular files of the door's first folder that match a pattern,
// as names for Open, sorted: *, ?, [a-z], {a,b}, and ** for any number of
// folders. Symbolic links to folders are not followed. A pattern that leads out
// of the folder is an error unless the door's names may lead anywhere.
func (d Door) Glob(pattern string) ([]string, error) {
	slash := filepath.ToSlash(pattern)
	if !doublestar.ValidatePattern(slash) {
		return nil, fmt.Errorf("%q is no pattern: want *, ?, [a-z], {a,b} or **", pattern)
	}
	options := []doublestar.GlobOption{doublestar.WithFilesOnly(), doublestar.WithNoFollow()}
	if d.free() {
		return d.globAnywhere(slash, options)
	}
	if !filepath.IsLocal(pattern) {
		return nil, d.outside(pattern)
	}
	root, err := d.folders[0].open()
	if err != nil {
		return nil, named(pattern, err)
	}
	defer root.Close()
	return doublestar.Glob(root.FS(), slash, options...)
}

// globAnywhere expands a pattern from the door's folder, or from the root of
// the file system.
func (d Door) globAnywhere(slash string, options []doublestar.GlobOption) ([]string, error) {
	if filepath.IsAbs(slash) || len(d.folders) == 0 {
		return doublestar.FilepathGlob(slash, options...)
	}
	return doublestar.Glob(os.DirFS(d.folders[0].path()), slash, options...)
}
