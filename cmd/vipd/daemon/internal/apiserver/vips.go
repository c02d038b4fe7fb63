package apiserver

import (
	"encoding/json"
	"net/http"
	"net/netip"

	"vipd/cmd/internal/api"
	"vipd/cmd/vipd/daemon/internal/httpserve"
)

// getVIPs answers with the VIPs that have one owner.
func (srv server) getVIPs(w http.ResponseWriter, r *http.Request) {
	httpserve.Answer(w, srv.Ownership(r.Context()))
}

// postMove passes the group of a VIP to another host.
func (srv server) postMove(w http.ResponseWriter, r *http.Request) {
	var q api.MoveRequest
	vip, err := netip.ParseAddr(r.PathValue("vip"))
	if err == nil {
		err = json.NewDecoder(r.Body).Decode(&q)
	}
	if err != nil {
		httpserve.Refuse(w, http.StatusBadRequest, err)
		return
	}
	q.By = httpserve.Author(r, q.By)
	err = srv.MoveVIP(r.Context(), vip, q)
	if err != nil {
		httpserve.Refuse(w, http.StatusConflict, err)
		return
	}
	srv.getVIPs(w, r)
}

// postStandby puts this host on standby, or ends the standby.
func (srv server) postStandby(w http.ResponseWriter, r *http.Request) {
	var q api.StandbyRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		httpserve.Refuse(w, http.StatusBadRequest, err)
		return
	}
	q.By = httpserve.Author(r, q.By)
	if err := srv.Standby(r.Context(), q); err != nil {
		httpserve.Refuse(w, http.StatusConflict, err)
		return
	}
	srv.getVIPs(w, r)
}
