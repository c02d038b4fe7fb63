package probe

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sort"
	"unicode/utf8"

	"vipd/balancer"
)

// step is one request of a TCP check, and the answer that it expects.
type step struct {
	send []byte
	// find returns the length of the shortest prefix of data that contains the expected answer, or
	// -1. Every longer prefix must also contain it, so it does not matter how an answer is split.
	// If find is nil, the step expects no answer.
	find func(data []byte) int
	// lacking describes the expected answer in errors.
	lacking string
}

// stepsOf returns the steps of a valid definition. The settings send and expect form a single step.
func stepsOf(h *balancer.Health) []step {
	defined := h.Steps
	if h.Send != "" || h.Expect != "" {
		defined = []balancer.HealthStep{{Send: h.Send, Expect: h.Expect}}
	}
	steps := make([]step, len(defined))
	for i := range defined {
		steps[i] = newStep(&defined[i])
	}
	return steps
}

func newStep(d *balancer.HealthStep) (s step) {
	send, errSend := d.Request()
	want, errWant := d.Answer()
	pattern, errPattern := d.Pattern()
	if errSend != nil || errWant != nil || errPattern != nil {
		panic(fmt.Sprintf("probe: a step that is not valid: %v, %v, %v", errSend, errWant, errPattern))
	}
	s.send = send
	switch {
	case pattern != nil:
		s.find, s.lacking = findPattern(pattern), fmt.Sprintf("a match for %q", d.ExpectRegexp)
	case len(want) > 0:
		s.find, s.lacking = findBytes(want), "the expected "+excerpt(want)
	}
	return s
}

func findBytes(want []byte) func([]byte) int {
	return func(data []byte) int {
		if i := bytes.Index(data, want); i >= 0 {
			return i + len(want)
		}
		return -1
	}
}

func findPattern(pattern *regexp.Regexp) func([]byte) int {
	return func(data []byte) int {
		data = withoutPartialRune(data)
		if !pattern.Match(data) {
			return -1
		}
		return sort.Search(len(data), func(n int) bool { return pattern.Match(withoutPartialRune(data[:n])) })
	}
}

// withoutPartialRune returns data without an incomplete final character, whose other bytes may
// still arrive.
func withoutPartialRune(data []byte) []byte {
	for i := len(data) - 1; i >= max(0, len(data)-utf8.UTFMax); i-- {
		if !utf8.RuneStart(data[i]) {
			continue
		}
		if !utf8.FullRune(data[i:]) {
			return data[:i]
		}
		break
	}
	return data
}

// converse runs the steps over a connection, and returns the text of the result. Each step starts
// to read after the previous step's answer.
func (a *attempt) converse(conn io.ReadWriter) (string, error) {
	var unread []byte
	for i := range a.steps {
		if len(a.steps) > 1 {
			a.notes.note("step %d of %d", i+1, len(a.steps))
		}
		rest, err := a.perform(conn, i, unread)
		if err != nil && len(a.steps) > 1 {
			err = fmt.Errorf("step %d of %d: %w", i+1, len(a.steps), err)
		}
		if err != nil {
			return "", err
		}
		unread = rest
	}
	last := &a.steps[len(a.steps)-1]
	switch {
	case len(a.steps) > 1:
		return fmt.Sprintf("passed all %d steps", len(a.steps)), nil
	case last.find == nil:
		return "connected, and sent " + size(len(last.send)), nil
	}
	return "answered as expected", nil
}

// perform runs step i, and returns the data after its answer. unread is the data after the previous
// answer. If sending fails, perform still reads, because a peer that closes the connection early
// may already have sent all answers.
func (a *attempt) perform(conn io.ReadWriter, i int, unread []byte) ([]byte, error) {
	s := &a.steps[i]
	if len(s.send) > 0 {
		_, err := conn.Write(s.send)
		answers := slices.ContainsFunc(a.steps[i:], func(s step) bool { return s.find != nil })
		if err != nil && (!answers || !resets(err)) {
			return nil, a.sendError(err)
		}
	}
	if s.find == nil {
		return unread, nil
	}
	return a.await(conn, s, unread)
}

// await reads until a step's answer has arrived, and returns the data after it. got is the data
// that has already been read.
func (a *attempt) await(r io.Reader, s *step, got []byte) ([]byte, error) {
	buf := make([]byte, 4<<10)
	for {
		if end := s.find(got); end >= 0 {
			return got[end:], nil
		}
		if len(got) >= maxAnswer {
			return nil, endless(s.lacking)
		}
		n, err := r.Read(buf[:min(len(buf), maxAnswer-len(got))])
		got = append(got, buf[:n]...)
		switch {
		case err == nil || n > 0:
		case len(got) == 0:
			return nil, a.readError(err, 0, "the answer")
		case timedOut(err):
			return nil, fmt.Errorf("%w within %s", a.unexpected(got, s.lacking), a.timeout())
		default:
			return nil, fmt.Errorf("%w, and the connection was closed", a.unexpected(got, s.lacking))
		}
	}
}
