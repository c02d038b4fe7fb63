package convert

import "time"

// ramp is the slow start of a server in the origin. text is "" if the server has none.
type ramp struct {
	line int
	text string
	unit time.Duration
}

// slowStart sets slow_start to the longest time of all servers. It adds a note for each server with
// another time.
func (d *draft) slowStart(s *service, ramps []ramp) {
	spans := make([]span, len(ramps))
	longest := span{}
	for i, r := range ramps {
		if r.text != "" {
			spans[i], _ = d.span(r.line, r.text, r.unit)
		}
		if spans[i].time > longest.time {
			longest = spans[i]
		}
	}
	if longest.time == 0 {
		return
	}
	s.set(longest.line, "slow_start", seconds(longest.time))
	for i, r := range ramps {
		if spans[i].time != longest.time {
			d.note(r.line, "a service has one slow_start for all its endpoints: vipd uses the longest, from line %d", longest.line)
		}
	}
}
