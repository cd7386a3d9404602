// What the page takes from TensorBoard around it: the dark mode and the reload button.

/** Follows TensorBoard's dark mode; calls back at once and at every change. */
export function watchDarkMode(changed: (dark: boolean) => void): () => void {
  let body: HTMLElement;
  try {
    body = window.parent.document.body;
  } catch {
    changed(window.matchMedia("(prefers-color-scheme: dark)").matches);
    return () => undefined;
  }
  const report = () => changed(body.classList.contains("dark-mode"));
  const observer = new MutationObserver(report);
  observer.observe(body, { attributes: true, attributeFilter: ["class"] });
  report();
  return () => observer.disconnect();
}

interface HostMessage {
  type: string;
  id: number;
  isReply?: boolean;
}

/** Calls back whenever TensorBoard reloads: its button, or its timer. */
export function watchReload(reloaded: () => void): void {
  const channel = new MessageChannel();
  channel.port1.onmessage = (event: MessageEvent<string>) => {
    const message = JSON.parse(event.data) as HostMessage;
    if (message.isReply) return;
    if (message.type === "experimental.DataReloaded") reloaded();
    channel.port1.postMessage(
      JSON.stringify({ type: message.type, id: message.id, payload: null, error: null, isReply: true }),
    );
  };
  window.parent.postMessage("experimental.bootstrap", "*", [channel.port2]);
}
