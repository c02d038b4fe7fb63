package netfilter

import (
	"fmt"
	"math"
	"strconv"
)

// statistic gathers the options of one -m statistic.
type statistic struct {
	mode string
	nth  *nth
}

// nth matches every so many packets, as xt_statistic counts: the counter begins where the user's --packet comes out as
// that of the first match, and is shared by all packets that reach it.
type nth struct {
	every, packet uint32
}

// start is the counter at first.
func (n *nth) start() uint32 { return n.every - 1 - n.packet }

// option reads one of the options; the match comes with the one that all depends on.
func (s *statistic) option(name, value string) (match, error) {
	switch name {
	case "--mode":
		*s = statistic{mode: value}
		if value != "random" && value != "nth" {
			return nil, fmt.Errorf("mode %s is neither random nor nth", value)
		}
		return nil, nil
	case "--probability":
		p, err := strconv.ParseFloat(value, 64)
		if err != nil || s.mode != "random" || p < 0 || p > 1 {
			return nil, fmt.Errorf("%s is no probability in mode random", value)
		}
		p = math.Round(p*(1<<31)) / (1 << 31) // what the kernel compares 31 random bits with
		return func(f *flow) bool { return f.toss(p) }, nil
	}
	n, err := strconv.ParseUint(value, 0, 32)
	if err != nil || s.mode != "nth" {
		return nil, fmt.Errorf("%s is no number in mode nth", value)
	}
	if name == "--every" {
		if n == 0 || s.nth != nil {
			return nil, fmt.Errorf("there is one --every, and it is at least 1")
		}
		counter := &nth{every: uint32(n)}
		s.nth = counter
		return func(f *flow) bool { return f.count(counter) }, nil
	}
	if s.nth == nil || uint32(n) >= s.nth.every {
		return nil, fmt.Errorf("--packet comes after --every and is less")
	}
	s.nth.packet = uint32(n)
	return nil, nil
}
