package balancer

import (
	"encoding/hex"
	"errors"
	"regexp"
	"regexp/syntax"
	"slices"

	"vipd/balancer/decode"
)

// HealthStep is one exchange of a TCP check. It sends data, waits for an answer, or both.
type HealthStep struct {
	// Send and SendHex are the data to send, as text or as hexadecimal digits.
	Send    string `toml:"send"`
	SendHex string `toml:"send_hex"`
	// Expect, ExpectHex and ExpectRegexp describe the part of the answer to wait for, as text, as
	// hexadecimal digits, or as a regular expression in Go's syntax.
	Expect       string `toml:"expect"`
	ExpectHex    string `toml:"expect_hex"`
	ExpectRegexp string `toml:"expect_regexp"`
}

// Example returns a valid step, for messages.
func (s *HealthStep) Example() string { return `{ send = "PING\r\n", expect = "+PONG" }` }

// Request returns the bytes to send.
func (s *HealthStep) Request() ([]byte, error) { return bytesOf(s.Send, s.SendHex) }

// Answer returns the bytes to wait for.
func (s *HealthStep) Answer() ([]byte, error) { return bytesOf(s.Expect, s.ExpectHex) }

// bytesOf returns the bytes that the hexadecimal digits encode. If digits is empty, it returns
// text.
func bytesOf(text, digits string) ([]byte, error) {
	if digits == "" {
		return []byte(text), nil
	}
	data, err := hex.DecodeString(digits)
	if err != nil {
		return nil, errors.New(`needs an even number of hexadecimal digits, such as "0d0a"`)
	}
	return data, nil
}

// Pattern returns the compiled ExpectRegexp, or nil if there is none. The expression must not
// depend on where the data ends, because an answer can arrive in parts.
func (s *HealthStep) Pattern() (*regexp.Regexp, error) {
	if s.ExpectRegexp == "" {
		return nil, nil
	}
	tree, err := syntax.Parse(s.ExpectRegexp, syntax.Perl)
	if err != nil {
		return nil, err
	}
	if dependsOnEnd(tree) {
		return nil, errors.New(`must not contain $, \z, \b or \B, because an answer can arrive in parts: write the characters that follow, such as \r\n`)
	}
	pattern, err := regexp.Compile(s.ExpectRegexp)
	if err == nil && pattern.MatchString("") {
		return nil, errors.New("matches an empty answer, so the check would prove nothing")
	}
	return pattern, err
}

// dependsOnEnd reports whether a match can change when more data follows.
func dependsOnEnd(tree *syntax.Regexp) bool {
	switch tree.Op {
	case syntax.OpEndLine, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return true
	}
	return slices.ContainsFunc(tree.Sub, dependsOnEnd)
}

func (r *healthReader) checkSteps(h *Health) {
	if len(h.Steps) > 0 && (h.Send != "" || h.Expect != "") {
		r.errorf("steps", "can't be used together with send and expect: make them the first step")
	}
	for i := range h.Steps {
		r.checkStep(&h.Steps[i], element("steps", i, ""))
	}
}

func (r *healthReader) checkStep(s *HealthStep, path string) {
	at := func(field string) string { return decode.Join(path, field) }
	expects := 0
	for _, text := range []string{s.Expect, s.ExpectHex, s.ExpectRegexp} {
		if text != "" {
			expects++
		}
	}
	switch {
	case expects > 1:
		r.errorf(path, "has more than one of expect, expect_hex and expect_regexp: keep only one of them")
	case s.Send != "" && s.SendHex != "":
		r.errorf(path, "has both send and send_hex: keep only one of them")
	case expects == 0 && s.Send == "" && s.SendHex == "":
		r.errorf(path, "needs send or expect: without them, a step does nothing")
	}
	if _, err := s.Request(); err != nil {
		r.errorf(at("send_hex"), "%v", err)
	}
	if _, err := s.Answer(); err != nil {
		r.errorf(at("expect_hex"), "%v", err)
	}
	if _, err := s.Pattern(); err != nil {
		r.errorf(at("expect_regexp"), "%v", err)
	}
}
