// What the page's scripts find in a browser beside the standard library.

/** Apache ECharts, which stands before them. */
declare const echarts: any;

interface Uint8ArrayConstructor {
    /** In browsers of 2025 and later. */
    fromBase64?(text: string): Uint8Array<ArrayBuffer>;
}

interface Window {
    /** What tests and curious users read. */
    opscopePage: Record<string, any>;
}
