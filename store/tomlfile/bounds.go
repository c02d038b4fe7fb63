package tomlfile

import (
	"errors"
	"fmt"

	"github.com/BurntSushi/toml"

	"vipd/balancer"
)

// The parser keeps, for each key, all that is around it: tables nested in 48 kB of text take 8 GB, and a million keys 2 to 4
// GB. What exceeds these bounds is refused before it is parsed.
const (
	// maxNested is how deep arrays and inline tables may be nested, and maxParts how many parts the path of a value may have.
	maxNested = 64
	maxParts  = maxNested + 16
	// maxKeys is how many keys and array elements one text may have: those of some 20,000 services with 10 endpoints each.
	maxKeys = 500_000
)

// excess says what of a text is too much to be parsed, and the line; "" if nothing is.
func excess(text string) (why string, line int) {
	if len(text) > maxSize {
		return fmt.Sprintf("is larger than %d MiB; split it", maxSize>>20), 0
	}
	s := scanner{text: text, counts: map[string]int{}}
	n := 0
	s.visit = func(_ []byte, at int, _ bool) {
		n++
		switch {
		case why != "":
			return
		case s.nested > maxNested || s.parts > maxParts:
			why, line = fmt.Sprintf("nests values more than %d deep", maxNested), at
		case n > maxKeys:
			why, line = fmt.Sprintf("has more than %d keys and list elements; split it: store.path may name a folder", maxKeys), at
		default:
			return
		}
		s.pos = len(text)
	}
	s.scan()
	return why, line
}

// tooMuch is the problem with a text that is not parsed.
func tooMuch(file, why string, line int) balancer.Problem {
	return balancer.Problem{Severity: balancer.SeverityError, Origin: balancer.Origin{File: file, Line: line}, Text: why}
}

// Decode reads TOML into a struct, for those who need some of its keys, whatever else is in it. It refuses what Parse does.
func Decode(file string, text []byte, into any) error {
	if why, line := excess(string(text)); why != "" {
		return errors.New(tooMuch(file, why, line).String())
	}
	if err := toml.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}
