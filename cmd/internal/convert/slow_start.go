package convert

import "time"

// ramp is a server's slow start in the origin. text is "" if the server has none.
type ramp struct {
	line int
	text string
	unit time.Duration
}

// slowStart sets slow_start to the longest duration of all servers. It adds a note for each server
// with a shorter duration.
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
