package main

import (
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/table"
	"vipd/store/etcd/schema"
)

// TestGetNodesWatch watches nodes during changes and an outage. Each change must be shown once, and
// the outage must be reported without ending the watch.
func TestGetNodesWatch(t *testing.T) {
	f := newStage(t)
	f.service("web", nil)
	one := f.start("gw1", atRevision(1))
	f.waitForStatuses(1)
	l := f.begin("get", "nodes", "-w")
	shown := func(text string) {
		t.Helper()
		defer func() {
			if t.Failed() {
				t.Logf("stdout = %s, want the nodes", l.out)
			}
		}()
		f.waitFor("output with "+text, func() bool { return strings.Contains(l.out.String(), text) })
	}
	shown("gw1   ipvs  yes           1       1         -   3h\n")
	one.setStatus(atRevision(2))
	shown("gw1   ipvs  yes           2       0         -   3h\n")
	one.setStatus(atRevision(2)) // no difference, so nothing is shown
	f.Members[0].Kill()
	l.waitForStderr("; trying again\n")
	f.Members[0].Start()
	f.start("gw2", func(s *schema.NodeStatus) { s.Revision, s.Mode, s.Fallback, s.Ready = 2, "userspace", true, false })
	shown("gw2   userspace!  no            2       0         -   3h\n")
	one.stop()
	f.waitFor("gw1 to go", func() bool {
		frames := strings.Split(l.out.String(), "\n\n")
		return !strings.Contains(frames[len(frames)-1], "gw1") && strings.Contains(frames[len(frames)-1], "gw2")
	})
	l.stop()
	l.waitForExit(cli.ExitDone)
	frames := strings.Split(l.out.String(), "\n\n")
	for i, frame := range frames[1:] {
		if frame == frames[i] {
			t.Errorf("frame =\n%s\nwant this frame once", frame)
		}
	}
}

// TestGetPoolsAndVIPsWatch watches pools, and VIPs with one owner, while both change. Each change
// must be shown. A VIP without an owner must be reported without ending the watch.
func TestGetPoolsAndVIPsWatch(t *testing.T) {
	f := newStage(t)
	put := func(key, value string) {
		t.Helper()
		if _, err := f.Client().Put(t.Context(), "/vipd/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	shown := func(l *line, text string) {
		t.Helper()
		f.waitFor("output with "+text, func() bool { return strings.Contains(l.out.String(), text) })
	}
	f.service("web", nil)
	put("ownership/policy/10.96.0.10", `{"hold": "one"}`)
	pools, vips := f.begin("get", "pools", "-w"), f.begin("get", "vips", "-w")
	pools.waitForStderr("there are no pools\n")
	vips.waitForStderr("no node owns 10.96.0.10: no host is allowed to own VIPs")
	f.do(cli.ExitDone, "pool", "set", "blue", "10.98.0.0/30")
	shown(pools, "blue  10.98.0.0/30 ")
	put("ownership/nodes/gw1", `{"boot": "0000000000000001", "weight": 1, "addresses": [{"address": "10.96.0.1", "networks": ["10.96.0.0/24"]}]}`)
	put("ownership/sessions/gw1", `{"id": "0000000000000001", "jury": ["gw1"]}`)
	put("ownership/vips/10.96.0.10", `{"node": "gw1", "session": "0000000000000001", "gen": 1, "since": "2026-11-22T10:00:00Z", "why": "free"}`)
	shown(vips, "10.96.0.10  one   gw1 ")
	for _, l := range []*line{pools, vips} {
		l.stop()
		l.waitForExit(cli.ExitDone)
	}
}

// TestNodesFitEightyColumns lists names of up to 20 letters. No line may be wider than 80 columns.
func TestNodesFitEightyColumns(t *testing.T) {
	p := &cli.Printer{World: cli.World{Now: time.Now}}
	behind := int64(1234567)
	text := nodesTable(p, []nodeView{
		{
			Node: "gateway-frankfurt-12", Here: true, Behind: &behind, Live: &schema.NodeLive{Started: time.Now().Add(-400 * 24 * time.Hour)},
			Status: &schema.NodeStatus{Mode: "userspace", Fallback: true, Revision: 123456789, ProblemCount: 1234},
		},
		{Node: "gateway-frankfurt-13", Here: true, Live: &schema.NodeLive{}},
	}).Text(table.Form{})
	for l := range strings.Lines(text) {
		if w := table.Width(strings.TrimSuffix(l, "\n")); w > 80 {
			t.Errorf("columns = %d, want at most 80:\n%s", w, l)
		}
	}
}
