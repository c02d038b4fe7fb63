package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/wording"
	"vipd/cmd/vipd/daemon/internal/httpserve"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/dataplane/probe"
)

// postCheck runs an endpoint's checks immediately, and answers with their result.
func (srv server) postCheck(w http.ResponseWriter, r *http.Request) {
	var q api.CheckRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		httpserve.Refuse(w, http.StatusBadRequest, err)
		return
	}
	s := srv.Views.Model.State()
	t, subject, err := checkedAt(&q, s)
	if err != nil {
		httpserve.Refuse(w, http.StatusBadRequest, err)
		return
	}
	all, err := srv.Views.Checks.Once(r.Context(), t, subject)
	if err != nil {
		httpserve.Refuse(w, http.StatusInternalServerError, err)
		return
	}
	httpserve.Answer(w, checkResult(t, all, subject.Health.Need, s.Inputs.Health.At(t)))
}

// checkResult combines the results of a target's checks into the result of the check that decides.
// If all checks are needed, a failed check decides. If any check suffices, a passed check decides.
// Without such a check, a check that could not run decides, or else the first check.
func checkResult(t balancer.Target, all []probe.Exchanged, need balancer.HealthNeed, verdict balancer.Verdict) api.CheckResult {
	alone, together := health.Failed, health.Passed
	if need == balancer.NeedAnyHealth {
		alone, together = together, alone
	}
	var checks []api.CheckResult
	decides, exchange := -1, ""
	for _, outcome := range []health.Outcome{alone, health.NotRun, together} {
		if decides < 0 {
			decides = slices.IndexFunc(all, func(x probe.Exchanged) bool { return x.Outcome == outcome })
		}
	}
	for i, x := range all {
		if len(all) > 1 {
			exchange += fmt.Sprintf("* check %d of %d: %s check of %s\n", i+1, len(all), x.Type, x.At)
		}
		exchange += x.Transcript
		checks = append(checks, api.CheckResult{
			Service: t.Service, Address: t.Address(), At: x.At.String(), Type: x.Type, Outcome: string(x.Outcome),
			Text: x.Text, Took: x.Took, Exchange: x.Transcript, Health: verdict,
		})
	}
	out := checks[decides]
	if out.Exchange = exchange; len(all) > 1 {
		out.Text = fmt.Sprintf("check %d of %d: %s", decides+1, len(all), out.Text)
		out.Checks = checks
	}
	return out
}

// checkedAt finds the target that a request names, and its checks. It returns an error if the
// address has no checked port, or several.
func checkedAt(q *api.CheckRequest, s *model.State) (t balancer.Target, found health.Subject, err error) {
	service, err := s.Place().Service(q.Service)
	if err != nil {
		return t, found, err
	}
	named, err := s.Place().Target(service, q.Address)
	switch {
	case err != nil:
		return t, found, err
	case service.Health == nil:
		return t, found, fmt.Errorf(`service %s has no health check; add a check, for example health = { type = "tcp" }`, q.Service)
	}
	var several []string
	for target, subject := range s.Checked.While(balancer.Target{Service: q.Service}, func(t balancer.Target) bool { return t.Service == q.Service }) {
		switch {
		case target.Addr != named.Addr || named.Port != 0 && target.Port != named.Port:
			continue
		case subject.RunsProgram() && subject.Fleet && !s.Env.AllowExec:
			continue // only other nodes run the check
		case several == nil:
			t, found = target, subject
		case subject.SameChecks(found): // with health.port, all ports share their checks
			continue
		}
		several = append(several, target.Address())
	}
	switch len(several) {
	case 0:
		return t, found, unchecked(service, named, s)
	case 1:
		return t, found, nil
	}
	return t, found, fmt.Errorf("%s is checked at several ports: name one of these: %s", q.Address, wording.Some(several, 8))
}

// unchecked returns the reason why the named endpoint is not checked.
func unchecked(service *balancer.Service, named balancer.Target, s *model.State) error {
	place := s.Place()
	switch {
	case len(place.Endpoints(named)) == 0:
		return fmt.Errorf("service %s has no endpoint %s; it has %s", service.Name, named.Address(), wording.Some(place.Addresses(service), 8))
	case !slices.ContainsFunc(place.Endpoints(named), func(e *balancer.Endpoint) bool { return !e.IsUnchecked() }):
		return fmt.Errorf("endpoint %s of service %s has health = \"none\", so it has no check", named.Address(), service.Name)
	case balancer.WantsUser(service):
		return fmt.Errorf("service %s is in etcd, and services from etcd may run programs only as %s, but a check names another user", service.Name, balancer.ExecUser)
	}
	if field, path := s.Env.RefusedFile(service); field != "" {
		return fmt.Errorf("service %s is in etcd, and %s = %q is not in the folder that health.tls_dir allows", service.Name, field, path)
	}
	switch {
	case service.RunsProgram():
		return fmt.Errorf("service %s is in etcd, and services from etcd may not run programs on this host: set health.allow_exec = true in this host's configuration", service.Name)
	}
	return fmt.Errorf("a %s check can't test the ports of service %s: set health.port to a port that it can test", service.Health.Type, service.Name)
}
