const content = document.getElementById("content"), state = document.getElementById("state");
const live = new EventSource(content.dataset.live);
live.onmessage = (message) => {
  const focused = document.activeElement && document.activeElement.id;
  content.innerHTML = JSON.parse(message.data);
  const again = focused && document.getElementById(focused);
  if (again) again.focus({ preventScroll: true });
  state.textContent = "live";
};
live.onerror = () => { state.textContent = "not live: reload the page"; };
