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
