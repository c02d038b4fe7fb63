package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// insideFlag makes this program carry out orders, in the guest. It is for itself.
const insideFlag = "-inside"

// orders say what to run in the guest.
type orders struct {
	// Test2JSON is the program of that name.
	Test2JSON string
	// Limit is for all of it; Parallel is how many pieces run at once.
	Limit    time.Duration
	Parallel int
	// Flags are those of the test binaries.
	Flags    []string
	Packages map[string]order
	// Pieces are what is run, in the order in which it begins.
	Pieces []piece
}

// order is the folder that a package's tests run in, and their binary.
type order struct{ Folder, Binary string }

// inside carries out the orders of a file, writes events as go test -json does, and returns the exit status.
func inside(file string, out io.Writer) int {
	var o orders
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "report: reading the orders: %v\n", err)
		return 1
	}
	w := &lineWriter{out: out}
	start := time.Now()
	var running sync.WaitGroup
	all := map[string]*fate{}
	for path := range o.Packages {
		all[path] = &fate{path: path, action: "pass"}
	}
	for _, p := range o.Pieces {
		all[p.Path].left++
	}
	free := make(chan struct{}, max(1, o.Parallel))
	for _, p := range o.Pieces {
		free <- struct{}{}
		running.Go(func() {
			began := time.Now()
			err := p.run(o, o.Limit-time.Since(start), w)
			w.end(all[p.Path], err, time.Since(began))
			<-free
		})
	}
	running.Wait()
	for _, f := range all {
		if f.action != "pass" {
			return 1
		}
	}
	return 0
}

// fate is how a package fares whose pieces run apart.
type fate struct {
	path, action string
	left         int           // pieces that have not ended
	took         time.Duration // by all pieces
}

// run runs the piece for a limited time.
func (p piece) run(o orders, limit time.Duration, w *lineWriter) error {
	k := o.Packages[p.Path]
	args := slices.Concat([]string{"-t", "-p", p.Path, k.Binary}, o.Flags, []string{
		"-test.run=" + p.Run, "-test.skip=" + p.Skip, "-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + max(time.Second, limit).String(),
	})
	cmd := exec.Command(o.Test2JSON, args...)
	cmd.Dir = k.Folder
	cmd.Stderr = os.Stderr
	lines, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for r := bufio.NewReader(lines); ; {
		line, err := r.ReadBytes('\n')
		if e := (event{}); json.Unmarshal(line, &e) != nil || e.Test != "" || e.Action == "output" { // end says how packages end
			w.write(line)
		}
		if err != nil {
			break
		}
	}
	return cmd.Wait()
}

// lineWriter writes whole lines of many.
type lineWriter struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *lineWriter) write(line []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.out.Write(line)
}

// end notes that a piece of a package has ended, and writes it when it was the last. Test2json says neither of a package
// whose test panics.
func (w *lineWriter) end(f *fate, err error, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f.left--
	f.took += took
	if err != nil {
		f.action = "fail"
	}
	if f.left > 0 {
		return
	}
	line, err := json.Marshal(event{Action: f.action, Package: f.path, Elapsed: f.took.Seconds()})
	if err == nil { // there is nothing in it that could not be written
		_, _ = w.out.Write(append(line, '\n'))
	}
}
