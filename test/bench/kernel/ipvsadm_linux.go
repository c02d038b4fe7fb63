package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// ipvsadm is a subject with the same virtual servers as ipvs mode, which the tool ipvsadm creates.
type ipvsadm struct{ spec spec }

func (i ipvsadm) load(ctx context.Context) (time.Duration, error) {
	var text bytes.Buffer
	for n, vip := range vips(i.spec.Services) {
		fmt.Fprintf(&text, "-A -t %s:%d -s wrr\n", vip, servicePort)
		for j := range i.spec.Endpoints {
			fmt.Fprintf(&text, "-a -t %s:%d -r %s:%d -m -w 1\n", vip, servicePort, endpoint(n*i.spec.Endpoints+j), targetPort)
		}
	}
	cmd := exec.CommandContext(ctx, "ipvsadm", "--restore")
	cmd.Stdin = &text
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		return 0, fmt.Errorf("running %s: %w\n%.500s", cmd, err, out)
	}
	return time.Since(began), nil
}

func (i ipvsadm) change(context.Context, measure, int) (time.Duration, error) {
	return 0, errors.New("ipvsadm is measured by its load alone")
}

func (i ipvsadm) stop() {}
