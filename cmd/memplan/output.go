package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
)

// outputFlags say where and how a result is written.
type outputFlags struct{ format, file string }

// add defines the flags on a command whose result has these formats, the
// default first.
func (o *outputFlags) add(c *cobra.Command, formats []string) {
	addEnum(c, c.Flags(), &o.format, "format", formats[0], "output `FORMAT`", formats, nil)
	c.Flags().StringVarP(&o.file, "output", "o", "", "write the result to `FILE` instead of stdout")
}

// toFile reports whether the result goes to a file.
func (o *outputFlags) toFile() bool { return o.file != "" && o.file != "-" }

// emit writes a result in the format asked for, all of it or nothing.
func emit[T any](s *streams, o *outputFlags, table []report.Format[T], v T) error {
	var b bytes.Buffer
	if err := report.Write(&b, table, o.format, v, s.style(o.toFile())); err != nil {
		return err
	}
	return o.write(s, b.Bytes())
}

// write sends a finished result to the file or to stdout.
func (o *outputFlags) write(s *streams, data []byte) error {
	s.watch.disarm()
	if o.toFile() {
		return writeFile(o.file, data)
	}
	_, err := s.out.Write(data)
	return err
}

// writeFile replaces a file as a whole, or leaves it as it was. What is no
// regular file, such as /dev/stdout, is written to.
func writeFile(path string, data []byte) error {
	writing.Lock()
	defer writing.Unlock()
	err := replace(path, data)
	var p *fs.PathError
	if errors.As(err, &p) { // which may name a file beside it
		return fmt.Errorf("%s: %w", path, p.Err)
	}
	return err
}

func replace(path string, data []byte) (err error) {
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		if !info.Mode().IsRegular() {
			return os.WriteFile(path, data, mode)
		}
		mode = info.Mode().Perm()
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err = tmp.Write(data); err == nil {
		err = tmp.Chmod(mode)
	}
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
