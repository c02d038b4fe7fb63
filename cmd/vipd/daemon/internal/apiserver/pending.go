package apiserver

import (
	"encoding/json"
	"errors"
	"net/http"

	"vipd/cmd/internal/api"
	"vipd/cmd/vipd/daemon/internal/httpserve"
	"vipd/store/tomlfile"
)

// root returns a handler that passes a request to h only if the caller is root or vipd's own user.
// Members of ChangeGroup are refused, because a configuration file may contain secrets, and name
// programs that vipd runs.
func root(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, ok := httpserve.MayChange(r, ""); !ok {
			httpserve.Refuse(w, http.StatusForbidden, errors.New("only root may make or confirm a change to vipd's configuration file: use sudo"))
			return
		}
		h(w, r)
	}
}

// postPending starts a pending change of the configuration file.
func (srv server) postPending(w http.ResponseWriter, r *http.Request) {
	var q api.PendingRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		httpserve.Refuse(w, http.StatusBadRequest, err)
		return
	}
	result, err := srv.Try(r.Context(), httpserve.Author(r, q.By), q)
	if err != nil {
		httpserve.Refuse(w, http.StatusConflict, err)
		return
	}
	httpserve.Answer(w, result)
}

// getPending answers with the pending change of the configuration file and its text.
func (srv server) getPending(w http.ResponseWriter, _ *http.Request) {
	for _, p := range srv.Views.Look().State.Snapshot.Pending {
		if p.Text != "" {
			httpserve.Answer(w, api.PendingText{
				Pending: api.Pending{Place: p.Place, By: p.By, Since: p.Since, Until: p.Until}, Text: p.Text, Former: p.Former,
			})
			return
		}
	}
	httpserve.Refuse(w, http.StatusNotFound, errors.New("no change is pending"))
}

// postAbort reverts the pending change of the configuration file.
func (srv server) postAbort(w http.ResponseWriter, r *http.Request) {
	srv.reload(w, r, "vipctl abort", tomlfile.Reload{Abort: true, By: httpserve.Author(r, r.URL.Query().Get("by"))})
}
