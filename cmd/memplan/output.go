package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/planner"
)

// outputFlags are the destination and the format of a result.
type outputFlags struct{ format, file string }

// add defines the flags on a command whose result has these formats, the
// default first.
func (o *outputFlags) add(c *cobra.Command, formats []string) {
	addEnum(c, c.Flags(), &o.format, "format", formats[0], "output `FORMAT`", formats, nil)
	c.Flags().StringVarP(&o.file, "output", "o", "", "write the result to `FILE` instead of stdout")
}

// toFile reports whether the result goes to a file.
func (o *outputFlags) toFile() bool { return o.file != "" && o.file != "-" }

// emit writes a result in the requested format, all of it or nothing.
func emit[T any](s *streams, o *outputFlags, table []report.Format[T], v T) error {
	if names := report.Names(table); !slices.Contains(names, o.format) {
		return fmt.Errorf("--format %s: this answer is written as %s", o.format, report.Either(names))
	}
	var b bytes.Buffer
	if err := report.Write(&b, table, o.format, v, s.style(o.toFile())); err != nil {
		return err
	}
	return o.write(s, b.Bytes())
}

// write writes a finished result to the file or to stdout.
func (o *outputFlags) write(s *streams, data []byte) error {
	s.watch.disarm()
	if o.toFile() {
		return s.writeFile(o.file, data)
	}
	_, err := s.out.Write(data)
	return err
}

// writeFile writes a finished file, unless it would overwrite an input.
func (s *streams) writeFile(path string, data []byte) error {
	if err := s.spared(path); err != nil {
		return err
	}
	writing.Lock()
	defer writing.Unlock()
	return files.Write(path, data)
}

// outputs are the flags, of all commands, whose values are files to write.
var outputs = []string{"output", "timeline", "profile", "certificate", "csv", "record"}

// inputs are the flags whose values are files to read, after NAME= if they have
// one, besides those of settings. Values that are not files do not exist on the
// disk, and so do not matter.
var inputs = []string{"config", "plan", "model", "verify", "input", "expect", "replay"}

// spare records the files that a command line reads and writes, and returns an
// error if one is both.
func (s *streams) spare(c *cobra.Command, args []string) error {
	for _, name := range outputs {
		if f := c.Flags().Lookup(name); f != nil && f.Value.Type() == "string" && f.Changed {
			s.written = append(s.written, f.Value.String())
		}
	}
	var read []string
	if len(c.ValidArgs) == 0 { // otherwise they are names
		read = slices.Clone(args)
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains(inputs, f.Name) && !slices.ContainsFunc(planner.Settings, func(s planner.Setting) bool { return s.File && s.Flag == f.Name }) {
			return
		}
		for _, text := range given(f) {
			if _, file, ok := strings.Cut(text, "="); ok {
				read = append(read, file)
			}
			read = append(read, text)
		}
	})
	return s.keep(read...)
}

// keep records files that are read, which are never overwritten. It returns an
// error if the command line asks for that.
func (s *streams) keep(paths ...string) error {
	if len(s.written) == 0 {
		return nil
	}
	for _, p := range paths {
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() {
			s.kept = append(s.kept, info)
		}
	}
	for _, p := range s.written {
		if err := s.spared(p); err != nil {
			return err
		}
	}
	return nil
}

// spared returns an error for a file that is read.
func (s *streams) spared(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return nil // the file does not exist, or writing will fail
	}
	for _, k := range s.kept {
		if os.SameFile(info, k) {
			return fmt.Errorf("%s: is an input and would be overwritten: name another file", path)
		}
	}
	return nil
}
