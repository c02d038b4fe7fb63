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
)

// postCheck runs one health check.
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
	result, exchange, err := srv.Views.Checks.Once(r.Context(), t, subject)
	if err != nil {
		httpserve.Refuse(w, http.StatusInternalServerError, err)
		return
	}
	httpserve.Answer(w, api.CheckResult{
		Service: t.Service, Address: t.Address(), At: subject.At.String(), Type: subject.Health.Type, Outcome: string(result.Outcome),
		Text: result.Text, Took: result.Took, Exchange: exchange, Health: s.Inputs.Health.At(t),
	})
}

// checkedAt finds the endpoint of a request, and its probe.
func checkedAt(q *api.CheckRequest, s *model.State) (t balancer.Target, found health.Subject, err error) {
	service, err := s.Place().Service(q.Service)
	if err != nil {
		return t, found, err
	}
	named, err := balancer.ParseTarget(q.Service, q.Address)
	switch {
	case err != nil:
		return t, found, err
	case service.Health == nil:
		return t, found, fmt.Errorf(`service %s has no health check; add one to it, such as health = { type = "tcp" }`, q.Service)
	}
	var several []string
	for target, subject := range s.Checked.While(balancer.Target{Service: q.Service}, func(t balancer.Target) bool { return t.Service == q.Service }) {
		switch {
		case target.Addr != named.Addr || named.Port != 0 && target.Port != named.Port:
			continue
		case subject.Health.Type == balancer.ExecHealth && subject.Fleet && !s.Env.AllowExec:
			continue // only other nodes run the check
		case several == nil:
			t, found = target, subject
		case subject == found: // with health.port, all ports share a probe
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
	return t, found, fmt.Errorf("%s is checked at several ports: name one of %s", q.Address, wording.Some(several, 8))
}

// unchecked returns the reason why the named endpoint has no probe.
func unchecked(service *balancer.Service, named balancer.Target, s *model.State) error {
	place := s.Place()
	switch {
	case len(place.Endpoints(named)) == 0:
		return fmt.Errorf("service %s has no endpoint %s; it has %s", service.Name, named.Address(), wording.Some(place.Addresses(service), 8))
	case !slices.ContainsFunc(place.Endpoints(named), func(e *balancer.Endpoint) bool { return !e.IsUnchecked() }):
		return fmt.Errorf("endpoint %s of service %s has health = \"none\", so it has no check", named.Address(), service.Name)
	case balancer.WantsUser(service):
		return fmt.Errorf("service %s is in etcd, and what is there may run programs as %s only, not as %s", service.Name, balancer.ExecUser, service.Health.User)
	}
	if field, path := s.Env.RefusedFile(service); field != "" {
		return fmt.Errorf("service %s is in etcd, and %s = %q is not in the folder that health.tls_dir allows", service.Name, field, path)
	}
	switch {
	case service.Health.Type == balancer.ExecHealth:
		return fmt.Errorf("service %s is in etcd, and what is there may run no programs on this host: health.allow_exec of its config allows that", service.Name)
	}
	return fmt.Errorf("a %s check can't be made at the ports of service %s; health.port names one that can be checked", service.Health.Type, service.Name)
}
