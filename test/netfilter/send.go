package netfilter

import (
	"net/netip"
	"time"
)

// Coin decides whether a rule with --mode random matches.
type Coin func(probability float64) bool

// Send sends one packet. Counters of nth count it, and what rules add to sets stays: packets sent one after the other
// are the sequence that they are in the kernel.
func (r *Ruleset) Send(p Packet, host Host, coin Coin) Verdict {
	return newFlow(r, p, host, &real{r, coin}).walk()
}

// real is what chance comes to when it counts.
type real struct {
	rules *Ruleset
	coin  Coin
}

func (c *real) toss(p float64) bool { return c.coin(p) }

func (c *real) count(n *nth) bool {
	at, ok := c.rules.counters[n]
	if !ok {
		at = n.start()
	}
	if at++; at == n.every {
		at = 0
	}
	c.rules.counters[n] = at
	return at == 0
}

func (c *real) has(s *set, e entry) bool { return s.has(e, c.rules.now) }

func (c *real) add(s *set, e entry, lasts time.Duration, exist bool) {
	if !exist && s.has(e, c.rules.now) {
		return
	}
	if lasts > 0 {
		lasts += c.rules.now
	}
	s.entries[e] = lasts
}

// Weighted is a verdict with its probability.
type Weighted struct {
	Verdict
	Probability float64
}

// Outcomes are all ways that a packet can go now, each with its exact probability, in the order in which rules that
// match come first. A rule with --mode nth counts as one that matches with probability 1/every. Nothing is changed.
func (r *Ruleset) Outcomes(p Packet, host Host) []Weighted {
	var all []Weighted
	for script := []bool(nil); ; {
		c := &branch{rules: r, script: script, probability: 1, added: map[*set]map[entry]bool{}}
		v := newFlow(r, p, host, c).walk()
		all = append(all, Weighted{v, c.probability})
		script = c.script[:c.asked]
		for len(script) > 0 && !script[len(script)-1] {
			script = script[:len(script)-1]
		}
		if len(script) == 0 {
			return all
		}
		script[len(script)-1] = false
	}
}

// branch follows a script of tosses, and goes on with matches where it ends.
type branch struct {
	rules       *Ruleset
	script      []bool
	asked       int
	probability float64
	added       map[*set]map[entry]bool
}

func (c *branch) toss(p float64) bool {
	if c.asked == len(c.script) {
		c.script = append(c.script, true)
	}
	hit := c.script[c.asked]
	c.asked++
	if hit {
		c.probability *= p
	} else {
		c.probability *= 1 - p
	}
	return hit
}

func (c *branch) count(n *nth) bool {
	if n.every == 1 {
		return true
	}
	return c.toss(1 / float64(n.every))
}

func (c *branch) has(s *set, e entry) bool { return c.added[s][e] || s.has(e, c.rules.now) }

func (c *branch) add(s *set, e entry, _ time.Duration, _ bool) {
	if c.added[s] == nil {
		c.added[s] = map[entry]bool{}
	}
	c.added[s][e] = true
}

// Shares are the probabilities of the destinations at which a packet can arrive, forwarded or delivered.
func Shares(outcomes []Weighted) map[netip.AddrPort]float64 {
	shares := map[netip.AddrPort]float64{}
	for _, o := range outcomes {
		if o.Fate == Forwarded || o.Fate == Delivered {
			shares[o.Dst] += o.Probability
		}
	}
	return shares
}
