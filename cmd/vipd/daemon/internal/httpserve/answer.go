package httpserve

import (
	"encoding/json"
	"net/http"

	"vipd/cmd/internal/api"
)

// Answer writes body as JSON.
func Answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body) // fails if the caller has disconnected
}

// Refuse answers with an HTTP status code, and with an error as JSON.
func Refuse(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(api.Error{Message: err.Error()}) // fails if the caller has disconnected
}
