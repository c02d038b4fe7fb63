package doctor

import (
	"context"
	"strings"
)

// checkPrograms looks for kube-proxy, Docker and firewalls, whose rules may also affect services'
// packets.
func checkPrograms(ctx context.Context, o *observed) (found []Finding) {
	chains := map[string]bool{}
	for _, b := range o.backends {
		for _, of := range b.tables {
			for name := range of {
				chains[name] = true
			}
		}
	}
	if chains["KUBE-SERVICES"] {
		found = append(found, note("kube-proxy has rules here (KUBE-SERVICES)",
			"kube-proxy and vipd can run on the same host if they share no address and no node port", ""))
	}
	if chains["DOCKER"] {
		found = append(found, Finding{
			Level: OK, What: "Docker has rules here", Why: "Docker can set the policy of FORWARD to DROP; vipd accepts its own connections there",
		})
	}
	found = append(found, firewalls(ctx, o, chains)...)
	if len(found) == 0 && o.Root {
		found = append(found, fine("no kube-proxy, Docker, firewalld or ufw was found"))
	}
	return found
}

// firewalls looks for firewalls whose restart removes other programs' rules: firewalld and ufw.
func firewalls(ctx context.Context, o *observed, chains map[string]bool) (found []Finding) {
	flushes := "its restart or reload removes other programs' rules; vipd restores its own within a second"
	if state, err := o.Run(ctx, "systemctl", "is-active", "firewalld"); err == nil && strings.TrimSpace(state) == "active" {
		found = append(found, note("firewalld is running", flushes, ""))
	}
	if chains["ufw-user-input"] || chains["ufw6-user-input"] {
		found = append(found, note("ufw is enabled", flushes, ""))
	}
	return found
}
