// Command memplan plans the GPU memory of training and inference from an ONNX
// file, without running it. See `memplan help` and the README.
package main

import (
	"context"
	"errors"
	"fmt"
	"github.com/memplan/memplan/cmd/memplan/report"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"

	"github.com/memplan/memplan/quote"
)

// An exitCode is the exit code of the process: the same for every command and
// format.
type exitCode int

const (
	exitYes     exitCode = 0 // fits, no regression, validated
	exitNo      exitCode = 1 // does not fit, rule failed, prediction refuted
	exitUnknown exitCode = 2 // undetermined: usage, unreadable model, no GPU
)

// errNo is returned by a command whose answer is no, once it is printed.
var errNo = errors.New("no")

func main() {
	report.Version = version()
	os.Exit(int(run(os.Args[1:], os.Stdout, os.Stderr)))
}

// run executes a command line.
func run(args []string, out, errw io.Writer) exitCode {
	return guarded(errw, func() exitCode {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		context.AfterFunc(ctx, stop) // a second interrupt ends the process
		s := newStreams(out, errw)
		s.args = args
		defer s.watch.end()
		root := newRootCmd(s)
		root.SetArgs(args)
		return exitFor(root.ExecuteContext(ctx), errw)
	})
}

// guarded reports a panic, which is a bug of ours.
func guarded(errw io.Writer, f func() exitCode) (code exitCode) {
	defer func() {
		if r := recover(); r != nil {
			messages{errw}.line("memplan: internal error: %v: please report it with these lines", r)
			fmt.Fprintf(errw, "%s", debug.Stack())
			code = exitUnknown
		}
	}()
	return f()
}

// exitFor prints an error as one line and returns its code.
func exitFor(err error, errw io.Writer) exitCode {
	switch {
	case err == nil:
		return exitYes
	case errors.Is(err, errNo):
		return exitNo
	case errors.Is(err, context.Canceled):
		err = errors.New("interrupted")
	case errors.Is(err, context.DeadlineExceeded):
		err = errors.New("no answer within --timeout: give it more time")
	}
	messages{errw}.line("memplan: %s", shortened(quote.Text(oneLine(err.Error()))))
	return exitUnknown
}

// longest is the largest number of characters of a message that are printed:
// names in a file can be of any length.
const longest = 1200

// shortened omits the middle of a long message, which names the place at its
// beginning and the problem at its end.
func shortened(s string) string {
	r := []rune(s)
	if len(r) <= longest {
		return s
	}
	return string(r[:longest/2]) + " ... " + string(r[len(r)-longest/2:])
}

// oneLine joins the lines of a message.
func oneLine(s string) string {
	s = strings.NewReplacer("\n\nDid you mean this?\n\t", ": did you mean ", "\n\t", " or ").Replace(strings.TrimSpace(s))
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
}
