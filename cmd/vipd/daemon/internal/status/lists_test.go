package status

import (
	"testing"

	"vipd/balancer"
	"vipd/cmd/vipd/daemon/internal/model"
)

// TestRefusedServices lists problems of services that are missing from the snapshot. A service must
// be listed as refused only if its definition has an error.
func TestRefusedServices(t *testing.T) {
	v := &View{State: &model.State{}}
	for _, test := range []struct {
		name    string
		problem balancer.Problem
		want    bool
	}{
		{"error in the definition", balancer.Problem{Severity: balancer.SeverityError, Field: "vips", Text: "is missing"}, true},
		{"not granted", balancer.Problem{Severity: balancer.SeverityError, Kind: balancer.Refused}, true},
		{"warning", balancer.Problem{Severity: balancer.SeverityWarning, Field: "vips"}, false},
		{"left of a removed service", balancer.Problem{Severity: balancer.SeverityError, Kind: balancer.Unapplied}, false},
		{"endpoint of a removed service", balancer.Problem{Severity: balancer.SeverityError, Kind: balancer.Unanswered}, false},
	} {
		if got := v.refused("web", []balancer.Problem{test.problem}); got != test.want {
			t.Errorf("%s: refused = %v, want %v", test.name, got, test.want)
		}
	}
}
