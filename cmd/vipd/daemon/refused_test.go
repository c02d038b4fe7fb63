package daemon_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/test/program"
	"vipd/test/wait"
)

// row returns a service's row in the list of all services.
func (n *node) row(t *testing.T, name balancer.Name) api.Service {
	t.Helper()
	all, err := n.client.Services(t.Context())
	i := slices.IndexFunc(all, func(s api.Service) bool { return s.Name == name })
	if err != nil || i < 0 {
		t.Fatalf("service %s is missing from the list of %d services; error = %v", name, len(all), err)
	}
	return all[i]
}

// TestRefusedService adds a service that has an error. The list of services must have a row with
// its problem until the error is fixed.
func TestRefusedService(t *testing.T) {
	n := startNode(t, web)
	const other = "[services.other]\nvips = [\"127.40.0.2\"]\nports = [{ port = 8080 }]\n"
	n.write(web + strings.Replace(other, "127.40.0.2", "nowhere", 1))
	r, err := n.client.Reload(t.Context(), "")
	if err != nil || r.Services != 1 || len(r.Problems) != 1 {
		t.Fatalf("reload = %+v, %v; want one service and one problem", r, err)
	}
	if s := n.row(t, "other"); !s.Refused || len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Text, "nowhere") || s.Origin.Line == 0 {
		t.Errorf("refused service: row = %+v, want its problem", s)
	}
	n.write(web + other)
	if _, err := n.client.Reload(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if s := n.row(t, "other"); s.Refused || len(s.VIPs) != 1 {
		t.Errorf("fixed service: row = %+v, want its VIP and no refusal", s)
	}
}

// TestRetainedServiceHasProblem makes each kind of error after which a service keeps its last valid
// state. Before and after a restart, the service's row must name the error, and the list of
// problems must contain it once.
func TestRetainedServiceHasProblem(t *testing.T) {
	n := startNode(t, web)
	for name, text := range map[string]string{
		"its own value":    strings.Replace(web, "vips = [", "vips = [\"nowhere\", ", 1),
		"a broken quote":   strings.Replace(web, "vips = [\"", "vips = [", 1),
		"a wrong heading":  strings.ReplaceAll(web, "[services.web", "[service.web"),
		"an empty service": strings.ReplaceAll(web, "[services.web", "[[services.web"),
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				program.Save(t, n.file(), header+text)
				r, err := n.client.Reload(t.Context(), "", api.ReloadPrune)
				if name == "a wrong heading" {
					if err != nil || !slices.Contains(r.Removed, "web") {
						t.Errorf("reload --prune = %+v, %v; want \"web\" removed", r, err)
					}
					n.write(web)
					if _, err = n.client.Reload(t.Context(), ""); err != nil {
						t.Fatal(err)
					}
					program.Save(t, n.file(), header+text)
					r, err = n.client.Reload(t.Context(), "")
				}
				if err != nil || !slices.Contains(r.Kept, "web") || len(r.Problems) == 0 || !isErrorAt(r.Problems[0]) {
					t.Fatalf("reload = %+v, %v; want \"web\" kept", r, err)
				}
				if name != "an empty service" && len(r.Problems) != 1 {
					t.Errorf("one mistake: problems = %d, want 1: %v", len(r.Problems), r.Problems)
				}
				if s := n.row(t, "web"); s.Refused || len(s.Problems) == 0 || len(s.VIPs) == 0 || !isErrorAt(s.Problems[0]) {
					t.Errorf("row of the service = %+v, want its last state and the error", s)
				}
				n.stop()
				n.start()
				if s := n.row(t, "web"); len(s.Problems) == 0 || s.Origin.Line == 0 {
					t.Errorf("after a restart: row of the service = %+v, want its last state and the error", s)
				}
				n.write(web)
				if r, err := n.client.Reload(t.Context(), ""); err != nil || len(r.Problems) > 0 {
					t.Errorf("after the fix: reload = %+v, error = %v; want no problem", r, err)
				}
			}
		})
	}
}

// isErrorAt reports whether p is an error at a line.
func isErrorAt(p balancer.Problem) bool {
	return p.Severity == balancer.SeverityError && p.Origin.Line > 0
}

// TestStatusReportsLastValid starts vipd with an unusable file. Status must report the last valid
// configuration until the file is fixed.
func TestStatusReportsLastValid(t *testing.T) {
	n := startNode(t, web)
	says := func() bool {
		return slices.ContainsFunc(n.status().Problems, func(p balancer.Problem) bool {
			return strings.Contains(p.Text, "vipd started with the last good configuration")
		})
	}
	if says() {
		t.Error("before a mistake: status reports that the last valid configuration is in use = true, want false")
	}
	for name, text := range map[string]string{
		"unknown field": header + "[sync]\nmin_intervall = \"1s\"\n" + web, "not TOML": header + "[services.",
	} {
		n.stop()
		program.Save(t, n.file(), text)
		n.start()
		if !says() {
			t.Errorf("after %s: problems = %v, want a problem that the last valid configuration is in use", name, n.status().Problems)
		}
		n.write(web)
		wait.For(t, 10*time.Second, "the end of the problem", func() bool { return !says() })
	}
}

// TestReloadWaitsForRevision changes the file many times. Each reload must return after its
// revision is applied.
func TestReloadWaitsForRevision(t *testing.T) {
	n := startNode(t, web)
	for i := range 20 {
		text := web
		if i%2 == 0 {
			text += "[vips.\"127.40.0.1\"]\nhold = \"each\"\n" // this change affects no frontend
		}
		n.write(text)
		r, err := n.client.Reload(t.Context(), "")
		if s := n.status(); err != nil || r.Unapplied || s.Sync.Applied < r.Revision {
			t.Errorf("after reload %d: applied revision = %d, want %d (error %v)", i, s.Sync.Applied, r.Revision, err)
		}
	}
}
